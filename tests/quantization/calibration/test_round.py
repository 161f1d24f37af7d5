"""Grids against a second, slower way to find them; and in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from sparsebit.quantization import OBSERVERS, Quantizer, QuantModel
from tests.quantization.nets import config, images, residual

ROOT = Path(__file__).resolve().parents[3]
BATCHES = tuple(images(3, seed) * (1 + seed) for seed in range(3))


def by_hand(asym: bool, w_quant: bool, a_quant: bool) -> dict[str, tuple[float, float]]:
    """Scale and zero point of every activation, by running the whole model again for each of them."""
    qmodel = QuantModel(residual(), config(), images())
    weights = {name: q for name, q in qmodel.quantizers.items() if q.side == "W"}
    for name, quantizer in weights.items():
        weight = qmodel.model.get_submodule(name.removesuffix(".weight")).weight.detach().double()
        scale = weight.flatten(1).abs().amax(1) / 127
        quantizer.set_grid(scale.float(), torch.zeros(len(scale)))
        quantizer.use_quant = asym and w_quant
    found: dict[str, tuple[float, float]] = {}
    activations = [q for node in qmodel.model.graph.nodes if (q := activation_quantizer(qmodel, node.target))]
    for quantizer in activations:
        seen: list[Tensor] = []
        hook = quantizer.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0]))
        for batch in BATCHES:
            with torch.no_grad():
                qmodel(batch)
        hook.remove()
        values = torch.cat([value.double().flatten() for value in seen])
        lo, hi = min(values.min().item(), 0.0), max(values.max().item(), 0.0)
        scale = (hi - lo) / 255
        found[quantizer.name] = scale, round(-lo / scale)
        quantizer.set_grid(torch.tensor([scale]), torch.tensor([float(round(-lo / scale))]))
        quantizer.use_quant = asym and a_quant
    return found


def activation_quantizer(qmodel: QuantModel, target: object) -> Quantizer | None:
    module = dict(qmodel.model.named_modules()).get(str(target))
    return module if isinstance(module, Quantizer) and module.side == "A" else None


@pytest.mark.parametrize(
    ("asym", "w_quant", "a_quant"),
    [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, False, True),
        (True, True, True),
    ],
)
def test_grids_are_those_of_a_second_way_to_find_them(asym: bool, w_quant: bool, a_quant: bool) -> None:
    qmodel = QuantModel(residual(), config(), images())
    qmodel.calibrate(BATCHES, asym=asym, w_quant=w_quant, a_quant=a_quant, progress=False)
    expected = by_hand(asym, w_quant, a_quant)
    assert set(expected) == {tensor.name for tensor in qmodel.plan.activations()}
    for name, (scale, zero_point) in expected.items():
        quantizer = qmodel.quantizers[name]
        assert quantizer.scale.item() == pytest.approx(scale, rel=1e-5), name
        assert quantizer.zero_point.item() == zero_point, name
    assert all(quantizer.is_enable for quantizer in qmodel.quantizers.values())


def test_what_is_quantized_in_front_changes_what_is_measured() -> None:
    cases = [(True, False, False), (True, True, False), (True, False, True), (True, True, True)]
    scales = []
    for asym, w_quant, a_quant in cases:
        qmodel = QuantModel(residual(), config(W__QUANTIZER__BIT=3, A__QUANTIZER__BIT=3), images())
        qmodel.calibrate(BATCHES, asym=asym, w_quant=w_quant, a_quant=a_quant, progress=False)
        scales.append(tuple(q.scale.item() for q in qmodel.quantizers.values() if q.side == "A"))
        assert scales[-1][0] == scales[0][0], "nothing stands in front of the input"
    assert len(set(scales)) == len(cases)
    plain = QuantModel(residual(), config(W__QUANTIZER__BIT=3, A__QUANTIZER__BIT=3), images())
    plain.calibrate(BATCHES, progress=False)
    assert tuple(q.scale.item() for q in plain.quantizers.values() if q.side == "A") == scales[0]


def test_a_caller_may_fill_the_same_tensor_again() -> None:
    qmodel, buffer = QuantModel(residual(), config(), images()), torch.empty(3, 3, 8, 8)
    qmodel.prepare_calibration()
    for batch in BATCHES:
        qmodel(buffer.copy_(batch))
    buffer.zero_()
    qmodel.calc_qparams(asym=True, w_quant=True, a_quant=True, progress=False)
    expected = by_hand(True, True, True)
    for name, (scale, _) in expected.items():
        assert qmodel.quantizers[name].scale.item() == pytest.approx(scale, rel=1e-5), name


def test_a_parameter_on_the_way_is_calibrated_in_order_too() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.randn(1, 4)), nn.Parameter(torch.randn(1, 4))
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x + self.first) + self.second
            return y

    net, x = Positions().eval(), torch.randn(2, 4)
    qmodel = QuantModel(net, config(A__QADD__ENABLE_QUANT=True), x)
    assert {"first", "second", "x"} <= {tensor.name for tensor in qmodel.plan.activations()}
    qmodel.calibrate([x], asym=True, w_quant=True, a_quant=True, progress=False)
    for name in ("first", "second"):
        values = getattr(net, name).detach()
        width = values.max().clamp(min=0) - values.min().clamp(max=0)
        assert qmodel.quantizers[name].scale.item() == pytest.approx(width.item() / 255, rel=1e-6)


# -- in several processes -------------------------------------------------------------------------------------------

# Order of the data does not matter to these, so two processes must find what one finds.
OBSERVERS_TOLD = ("minmax", "percentile", "mse", "kl_histogram", "aciq")


def scales(observer: str, batches: tuple[Tensor, ...], asym: bool = False) -> dict[str, Tensor]:
    qmodel = QuantModel(residual(), config(A__OBSERVER__TYPE=observer), images())
    qmodel.calibrate(batches, asym=asym, w_quant=asym, a_quant=asym, progress=False)
    return {name: quantizer.scale for name, quantizer in qmodel.quantizers.items()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    share = BATCHES[:1] if rank == 0 else BATCHES[1:]  # of different length
    found = {name: scales(name, share) for name in OBSERVERS}
    found["asym"] = scales("minmax", share, asym=True)
    torch.save(found, f"{folder}/{rank}.pt")
    for case, bad in (("empty", []), ("nan", [share[0] * torch.nan])):
        try:
            scales("minmax", share if rank == 0 else bad)
        except Exception as error:
            Path(f"{folder}/{case}{rank}.txt").write_text(str(error), encoding="utf-8")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    program = f"from {__name__} import work; work({{}}, {str(tmp_path)!r})"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=240)
        assert process.returncode == 0, printed.decode()
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for key, found in first.items():
        assert all(torch.equal(scale, second[key][name]) for name, scale in found.items()), key
    for observer in OBSERVERS_TOLD:
        for name, scale in scales(observer, BATCHES).items():
            torch.testing.assert_close(first[observer][name], scale, rtol=1e-4, atol=0)
    for name, scale in scales("minmax", BATCHES, asym=True).items():
        torch.testing.assert_close(first["asym"][name], scale, rtol=1e-4, atol=0)
    # An error on one process ends both, with its message: neither waits for the other.
    for case, words in (("empty", "gave no batches"), ("nan", "NaN")):
        messages = [(tmp_path / f"{case}{rank}.txt").read_text(encoding="utf-8") for rank in range(2)]
        assert "on another process" in messages[0] and all(words in message for message in messages)
