"""AdaRound and BRECQ on models: better, the same every time, and not lost when killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from sparsebit.errors import ConfigError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import AdaRoundLayers, Brecq
from sparsebit.quantization.algorithms.reconstruction import Reconstruction, find_blocks
from sparsebit.quantization.algorithms.reconstruction.blocks import extract
from sparsebit.quantization.algorithms.reconstruction.streams import Streams
from sparsebit.quantization.quantizers import AdaRound
from sparsebit.storage import ArtifactError
from tests.quantization.algorithms.jobs import Dense, Encoder, is_same, snapshot
from tests.quantization.nets import config, images, residual
from tests.storage.artifacts import edit_file, file_of

DATA = [images(16, seed) for seed in range(2)]


def settings(*steps: Any, weight: int = 3, activation: int = 8, **changes: Any) -> dict[str, Any]:
    made = config(W__QUANTIZER={"BIT": weight}, A__QUANTIZER={"BIT": activation}, **changes)
    made["SCHEDULE"] = {"FUSE_BN": True, "RECOVERY": list(steps)}
    return made


def recovered(
    net: nn.Module, *steps: Any, data: list[Tensor] | None = None, folder: Path | None = None, **changes: Any
) -> QuantModel:
    data = data or DATA
    qmodel = QuantModel(net, settings(*steps, **changes), data[0])
    qmodel.calibrate(data, folder=folder, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


def error(qmodel: QuantModel, net: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((qmodel(x) - net(x)).square().mean())


def step(name: str, steps: int = 60, **options: Any) -> dict[str, Any]:
    return {name: {"steps": steps, "lr": 0.02, **options}}


@pytest.mark.parametrize("name", ["adaround", "brecq"])
@pytest.mark.parametrize("kind", ["residual", "dense", "encoder"])
def test_the_results_come_closer_to_the_float_model(name: str, kind: str) -> None:
    torch.manual_seed(0)
    makers: dict[str, Callable[[], nn.Module]] = {
        "residual": residual,
        "dense": lambda: Dense(3),
        "encoder": lambda: Encoder(nn.LayerNorm, layers=1),
    }
    net = makers[kind]()
    net.eval()
    data = [torch.randn(16, 6, 8) for _ in range(2)] if kind == "encoder" else DATA
    before, grad = snapshot(net), [p.requires_grad for p in net.parameters()]
    nearest, rebuilt = (recovered(net, *steps, data=data, weight=3) for steps in ([], [step(name, 150)]))
    x = torch.randn(16, 6, 8) if kind == "encoder" else images(16, seed=9)
    assert error(rebuilt, net, x) < 0.95 * error(nearest, net, x)
    assert is_same(net, before) and [p.requires_grad for p in net.parameters()] == grad
    assert all(q.substitute is None for q in rebuilt.quantizers.values())


def block_errors(qmodel: QuantModel, x: Tensor) -> list[float]:
    """Of what each block gives behind all quantized blocks before it."""
    blocks = find_blocks(qmodel.model)
    streams = Streams(qmodel.model, [((x,), {})], blocks, len(x))
    found = []
    for block in blocks:
        module = extract(qmodel.model, block)
        streams.targets(block, module, qmodel.quantizers.values())
        exact, rounded = streams.exact[0], streams.rounded[0]
        with torch.no_grad():
            rounded |= zip(block.outputs, module(*(rounded[n] for n in block.inputs)), strict=True)
        streams.rounded[0] = rounded
        found.append(sum(float((rounded[n] - exact[n]).square().mean()) for n in block.outputs))
    return found


def test_the_error_of_every_block_gets_smaller() -> None:
    net = residual()
    options = {"drop": 0.0, "scale_lr": 0.0, "regularization": 0.01}
    nearest, rebuilt = (recovered(net, *steps, weight=3) for steps in ([], [step("brecq", 150, **options)]))
    old, new = (block_errors(qmodel, DATA[0]) for qmodel in (nearest, rebuilt))
    assert len(old) >= 3 and all(a < b for a, b in zip(new, old, strict=True)), (old, new)


def test_weights_are_on_the_grid_and_exported_codes_are_those_chosen() -> None:
    qmodel = recovered(residual(), step("brecq"))
    moved = 0
    for name in ("conv1", "conv2", "fc"):
        quantizer = qmodel.quantizers[f"{name}.weight"]
        weight = qmodel.model.get_parameter(f"{name}.weight").detach()
        assert isinstance(quantizer, AdaRound) and quantizer.up.shape == weight.shape
        scale = quantizer.scale.view(-1, *[1] * (weight.dim() - 1))
        codes = ((weight / scale).floor() + quantizer.up).clamp(-4, 3)
        assert torch.equal(quantizer.grid().codes(quantizer.prepare(weight)).float(), codes)
        moved += int((codes != (weight / scale).round().clamp(-4, 3)).sum())
    assert moved > 0, "some are not rounded to the nearest"


def test_the_same_seed_gives_the_same_bits_whatever_was_random_before() -> None:
    found = []
    for index, seed in enumerate((0, 0, 1)):
        torch.manual_seed(100 + index)
        qmodel = recovered(residual(), step("brecq", 20, seed=seed))
        found.append(torch.cat([v.flatten().float() for v in qmodel.state_dict().values()]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_it_leaves_the_random_numbers_of_others_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    net = residual()
    torch.manual_seed(3)
    recovered(net, step("brecq", 2))
    assert torch.equal(torch.rand(1), expected)


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", ["adaround", "brecq"])
def test_a_killed_run_goes_on_from_the_last_finished_block(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recovered(residual(), step(name, 15)).state_dict()
    rebuild, done = Reconstruction._rebuild, list[int]()

    def counted(self: Reconstruction, job: Any, index: int, *rest: Any) -> Any:
        if index == kill_at:
            raise Killed
        done.append(index)
        return rebuild(self, job, index, *rest)

    monkeypatch.setattr(Reconstruction, "_rebuild", counted)
    kill_at = 1
    qmodel = QuantModel(residual(), settings(step(name, 15)), DATA[0])
    with pytest.raises(Killed):
        qmodel.calibrate(DATA, folder=tmp_path / "work", progress=False)
    assert done == [0]
    assert not any(q.observing or q.substitute for q in qmodel.quantizers.values())
    assert all(p.requires_grad for p in qmodel.parameters())
    kill_at = -1
    again = recovered(residual(), step(name, 15), folder=tmp_path / "work")
    assert 0 not in done[1:] and len(done) > 1, "the finished block was taken from the folder"
    assert all(torch.equal(value, whole[key]) for key, value in again.state_dict().items())
    # Also in the same object, without making it anew.
    done.clear()
    qmodel.calibrate(DATA, folder=tmp_path / "work", progress=False)
    assert done == []
    assert all(torch.equal(value, whole[key]) for key, value in qmodel.state_dict().items())


@pytest.mark.parametrize("other", ["weights", "data", "activation bits", "options", "damaged"])
def test_what_was_left_by_other_work_is_not_used(other: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    changes: dict[str, Any] = {}
    options, net, data = {"seed": 0}, residual(), DATA
    recovered(residual(), step("brecq", 5), folder=folder)
    if other == "weights":
        net = residual(seed=1)
    elif other == "data":
        data = [images(16, seed=7)]
    elif other == "activation bits":
        changes["activation"] = 4
    elif other == "options":
        options = {"seed": 4}
    else:
        for part in folder.iterdir():
            file_of(part, "state").write_bytes(b"nothing")
    said = "computes this block again" if other == "damaged" else "starts from the beginning"
    with pytest.warns(UserWarning, match=said):
        got = recovered(net, step("brecq", 5, **options), data=data, folder=folder, **changes).state_dict()
    expected = recovered(net, step("brecq", 5, **options), data=data, **changes).state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in got.items())


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda state, key: state.pop(key), "is missing, or is not expected"),
        (lambda state, key: state.update({key: state[key].double()}), "has another shape or type"),
        (lambda state, key: state.update({key: state[key] * torch.nan}), "holds NaN or infinite values"),
        (lambda state, key: state.update({key: -state[key]}), "scales that are not above 0"),
    ],
)
def test_a_finished_block_that_does_not_fit_is_computed_again(edit: Any, said: str, tmp_path: Path) -> None:
    """Whoever changed it made every digest right again."""
    expected = recovered(residual(), step("brecq", 2), folder=tmp_path / "work").state_dict()
    place = min((tmp_path / "work").iterdir())
    state = load_file(file_of(place, "state"))
    edit(state, min(key for key in state if key.endswith("/scale")))
    edit_file(place, "state", save(state))
    with pytest.warns(UserWarning, match=rf"computes this block again[\s\S]*{said}"):
        again = recovered(residual(), step("brecq", 2), folder=tmp_path / "work").state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in again.items())


def test_a_choice_that_turns_out_worse_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps in the wrong direction: every weight would be rounded to the farther code."""
    monkeypatch.setattr(
        "sparsebit.quantization.algorithms.reconstruction.core.SoftWeights.up",
        lambda soft: [part < 0 for part in soft._cut(soft.v.detach())],
    )
    nearest, rebuilt = recovered(residual()), recovered(residual(), step("brecq", 1, lr=1e-9, scale_lr=0.0))
    assert torch.equal(rebuilt(images()), nearest(images()))


def test_every_block_is_logged_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        recovered(residual(), step("adaround", 2))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 and lines[0].startswith("adaround: block 1 of 3, conv1.weight: error")


class Classified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x)))).argmax(-1)


def test_a_model_that_ends_in_integers() -> None:
    x = torch.randn(12, 6)
    qmodel = recovered(Classified().eval(), step("brecq", 3), data=[x])
    assert qmodel(x).dtype == torch.long


@pytest.mark.parametrize("scheme", ["per-tensor-symmetric", "per-channel-affine", "per-group-symmetric"])
def test_every_kind_of_grid(scheme: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"W__QSCHEME": scheme}
    if "group" in scheme:
        changes["W__GROUP_SIZE"] = 2
    qmodel = recovered(residual(), step("adaround", 5), **changes)
    qmodel.save(tmp_path / "it")
    assert torch.equal(QuantModel.load(tmp_path / "it", residual(2))(images()), qmodel(images()))


def test_the_quantizer_alone_asks_for_it_before_other_steps() -> None:
    made = settings("bias_correction")
    made["W"]["QUANTIZER"]["TYPE"] = "adaround"
    qmodel = QuantModel(residual(), made, DATA[0])
    assert [type(a).__name__ for a in qmodel.recovery] == ["AdaRoundLayers", "BiasCorrection"]
    made["SCHEDULE"]["RECOVERY"] = [step("brecq", 2)]
    assert [type(a) for a in QuantModel(residual(), made, DATA[0]).recovery] == [Brecq]


class Gate(nn.Module):
    """The first layer only decides which results of the second are passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        passed = (self.gate(x) > 0).float()
        y: Tensor = self.layer(passed)
        return y


def test_weights_without_a_part_in_the_results_keep_nearest_rounding() -> None:
    x = torch.randn(16, 4)
    qmodel = recovered(Gate().eval(), step("adaround", 5), data=[x])
    gate = qmodel.quantizers["gate.weight"]
    assert torch.equal(
        gate.snap(qmodel.model.gate.weight), qmodel.model.gate.weight_quantizer(qmodel.model.gate.weight)
    )
    assert gate.up.numel() == 0 or torch.equal(gate.up, gate.nearest(qmodel.model.gate.weight))


class Masked(nn.Module):
    """Two layers of attention under one mask, which is a result of the first block."""

    def __init__(self, mask: float) -> None:
        super().__init__()
        self.mask, self.first = mask, nn.Linear(4, 8)
        self.key, self.out = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((1, 1), self.mask).expand(x.shape[1], x.shape[1]).triu(1)
        x = self.first(x)
        for key, out in zip(self.key, self.out, strict=True):
            x = x + out((x @ key(x).mT + mask).softmax(-1) @ x)
        return x


def test_a_mask_of_minus_infinity_counts_as_a_very_low_number() -> None:
    torch.manual_seed(0)
    low, infinite = Masked(-1e4).eval(), Masked(-torch.inf).eval()
    infinite.load_state_dict(low.state_dict())
    data = [torch.randn(8, 5, 4) for _ in range(3)]
    found = [recovered(net, step("brecq", 10), data=data) for net in (low, infinite)]
    assert torch.equal(found[0](data[0]), found[1](data[0]))


def test_training_can_go_on_behind_it() -> None:
    qmodel = recovered(residual(), step("brecq", 5))
    qmodel.init_QAT()
    qmodel.train()
    qmodel(images()).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in qmodel.parameters() if p.dim() > 1)


def test_batch_norm_tuning_behind_it_moves_no_code() -> None:
    net = residual()
    with torch.no_grad():
        net.bn1.weight[::2] *= -1
        net.conv1.weight[:, 0] = 0  # weights that lie on the grid
    made = settings(step("adaround", 10))
    made["SCHEDULE"].update(FUSE_BN=False, BN_TUNING=True)
    qmodel = QuantModel(net, made, DATA[0])
    qmodel.calibrate(DATA, progress=False)

    def codes() -> Tensor:
        quantizer = qmodel.quantizers["conv1.weight"]
        weight = quantizer.prepare(qmodel.model.conv1.weight.detach())
        return quantizer.grid().codes(weight).int()

    before = codes()
    with qmodel.batchnorm_tuning():
        qmodel(DATA[0])
    signs = torch.where(net.bn1.weight < 0, -1, 1).view(-1, 1, 1, 1)
    # The lowest code has no opposite.
    assert torch.equal(codes(), (before * signs).clamp(max=3))


def test_settings_are_checked() -> None:
    assert AdaRoundLayers().drop == 0 and AdaRoundLayers().scale_lr == 0 and Brecq().drop == 0.5
    wrong: list[dict[str, Any]] = [{"steps": 0}, {"batch": 0}, {"largest": 0}, {"warmup": 1.0}, {"drop": 1.5}]
    wrong += [{"lr": value} for value in (0.0, -1.0, float("nan"), float("inf"))]
    wrong += [{"scale_lr": -1.0}, {"regularization": -0.1}]
    for options in wrong:
        with pytest.raises(ConfigError, match=f"(?i)brecq(.|\n)*{next(iter(options))}"):
            Brecq(**options)


def test_a_folder_of_someone_else_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Reconstruction, "_rebuild")
    (tmp_path / "work" / "brecq-0001").mkdir(parents=True)
    (tmp_path / "work" / "brecq-0001" / "thesis.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="contains other files"):
        recovered(residual(), step("brecq", 2), folder=tmp_path / "work")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ArtifactError, match=r"is a file|cannot write"):
        recovered(residual(), step("brecq", 2), folder=tmp_path / "file")
    assert (tmp_path / "work" / "brecq-0001" / "thesis.txt").read_text() == "mine"
