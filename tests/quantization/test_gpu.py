"""On a GPU everything is what it is on the CPU: calibration, recovery, training, and what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization import OBSERVERS, QuantModel
from sparsebit.quantization.algorithms import ALGORITHMS
from tests.quantization.algorithms.jobs import Encoder, Plain, unequal
from tests.quantization.nets import config, images, residual
from tests.quantization.training.test_training import KINDS, LABELS, sgd, training

pytestmark = pytest.mark.gpu
DATA = [images(16, seed) for seed in range(2)]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """No TF32, and the same kernels every time."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends], torch.backends.cudnn.deterministic
    for backend in backends:
        backend.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    yield
    for backend, value in zip(backends, before[0], strict=True):
        backend.allow_tf32 = value
    torch.backends.cudnn.deterministic = before[1]


def recovered(
    device: str,
    *steps: Any,
    net: nn.Module | None = None,
    data: list[Tensor] | None = None,
    weight: int = 3,
    folder: Path | None = None,
) -> QuantModel:
    data = data or DATA
    made = config(SCHEDULE={"FUSE_BN": True, "RECOVERY": list(steps)}, W__QUANTIZER={"BIT": weight})
    qmodel = QuantModel((net or residual()).to(device), made, data[0].to(device))
    qmodel.calibrate(data, folder=folder, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


def close(
    left: dict[str, Tensor], right: dict[str, Tensor], *, rtol: float = 1e-4, atol: float = 1e-5
) -> None:
    assert list(left) == list(right)
    for name, value in left.items():
        torch.testing.assert_close(
            value.cpu(), right[name].cpu(), rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def on(device: str, qmodel: QuantModel) -> bool:
    return all(tensor.device.type == device for tensor in qmodel.state_dict().values())


@pytest.mark.parametrize("asym", [False, True])
@pytest.mark.parametrize("observer", sorted(OBSERVERS))
def test_calibration(observer: str, asym: bool) -> None:
    found = []
    for device in ("cpu", "cuda"):
        made = config(W__OBSERVER={"TYPE": "minmax"}, A__OBSERVER={"TYPE": observer})
        qmodel = QuantModel(residual().to(device), made, DATA[0].to(device))
        qmodel.calibrate(DATA, asym=asym, w_quant=asym, a_quant=asym, progress=False)
        assert on(device, qmodel)
        found.append({name: quantizer.scale for name, quantizer in qmodel.quantizers.items()})
    close(*found, rtol=2e-2)  # a histogram may put a value that lies on a border on the other side of it


def subject(name: str) -> tuple[nn.Module, list[Tensor]]:
    """A net that has something to recover, the same one every time, and data for it."""
    torch.manual_seed(1)
    if name == "smoothquant":
        return Encoder(nn.LayerNorm, layers=1).eval(), [torch.randn(4, 6, 8) * torch.logspace(-1, 1, 8)]
    if name == "bias_correction":
        return residual(), DATA  # the analytic one needs batch norm
    return unequal(Plain(nn.ReLU6())).eval(), DATA


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"adaround", "brecq"}))
def test_recovery_without_random_numbers(name: str) -> None:
    options = [{name: {}}] + ([{name: {"method": "analytic"}}] if name == "bias_correction" else [])
    for step in options:
        found, nearest = [], dict[str, Tensor]()
        for device, steps in (("cpu", [step]), ("cuda", [step]), ("cuda", [])):
            net, data = subject(name)
            qmodel = recovered(device, *steps, net=net, data=data, weight=8)
            nearest = {n: p.detach() for n, p in qmodel.named_parameters()}
            found += [nearest] if steps else []
        close(*found, rtol=1e-3, atol=1e-4)
        assert any(n not in nearest or not torch.equal(p, nearest[n]) for n, p in found[1].items())


@pytest.mark.parametrize("name", ["adaround", "brecq"])
def test_reconstruction(name: str, tmp_path: Path) -> None:
    net, x = residual().cuda(), images(16, seed=9).cuda()

    def error(qmodel: QuantModel) -> float:
        with torch.no_grad():
            return float((qmodel(x) - net(x)).square().mean())

    step = {name: {"steps": 150, "lr": 0.02}}
    rebuilt = recovered("cuda", step, folder=tmp_path / "work")
    assert on("cuda", rebuilt) and error(rebuilt) < 0.95 * error(recovered("cuda"))
    again = recovered("cuda", step, folder=tmp_path / "work")  # every block from the folder
    assert torch.equal(again(x), rebuilt(x))
    close({"it": rebuilt.cpu()(x.cpu()).detach()}, {"it": again(x).detach()}, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("batch_norm", ["leave", "freeze", "fold"])
@pytest.mark.parametrize("kind", ["lsq", "uniform"])
def test_training(kind: str, batch_norm: Any) -> None:
    """A few steps, with all that can be switched on."""
    found = []
    for device in ("cpu", "cuda"):
        qmodel = training(kind, bits=8, batch_norm=batch_norm, observers="update", distill=0.5)
        qmodel.model.drop.eval()
        qmodel.to(device)
        optimizer, losses = sgd(qmodel), []
        for step in range(3):
            outputs = qmodel(images(4, seed=step).to(device))
            loss = qmodel.distill(F.cross_entropy(outputs, LABELS.to(device)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert on(device, qmodel)
        found.append(losses)
        folded = qmodel.eval().folded()
        with torch.no_grad():
            expected = qmodel(images().to(device))
            torch.testing.assert_close(folded(images().to(device)), expected, rtol=1e-2, atol=1e-2)
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_autocast(kind: str) -> None:
    qmodel = training(kind, bits=8).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = qmodel(images().cuda())
    F.cross_entropy(outputs.float(), LABELS.cuda()).backward()
    assert outputs.dtype == torch.bfloat16
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in qmodel.parameters())


def test_training_goes_on_from_a_folder(tmp_path: Path) -> None:
    qmodel = training("lsq", batch_norm="freeze", distill=0.5).cuda()
    qmodel.model.drop.eval()
    qmodel(images().cuda())
    qmodel.save(tmp_path / "saved")
    for device in ("cpu", "cuda"):
        again = QuantModel.load(tmp_path / "saved", residual(4).to(device))
        again.train()
        again.model.drop.eval()
        assert on(device, again)
        outputs = []
        for each in (qmodel, again):
            home = "cuda" if each is qmodel else device
            y = each(images().to(home))
            outputs.append(
                {"y": y.detach(), "loss": each.distill(F.cross_entropy(y, LABELS.to(home))).detach()}
            )
        close(*outputs, rtol=1e-2, atol=1e-2)


def test_batch_norm_is_tuned() -> None:
    found = []
    for device in ("cpu", "cuda"):
        qmodel = QuantModel(residual().to(device), config(SCHEDULE={"BN_TUNING": True}), DATA[0].to(device))
        qmodel.calibrate(DATA, progress=False)
        with qmodel.batchnorm_tuning():
            for batch in DATA:
                qmodel(batch.to(device))
        assert on(device, qmodel) and qmodel.tuned
        found.append({n: p.detach() for n, p in qmodel.named_parameters()})
    close(*found, rtol=1e-2, atol=1e-3)


def test_moving_a_calibrated_model() -> None:
    qmodel = recovered("cpu", weight=8)
    expected = qmodel(images()).detach()
    moved = qmodel.to("cuda")
    assert on("cuda", moved)
    close({"y": moved(images().cuda()).detach()}, {"y": expected}, rtol=1e-2, atol=1e-2)
