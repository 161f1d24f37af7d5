"""Quantization-aware training: an ordinary loop over a model that happens to be quantized."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QUANTIZERS, QuantModel
from sparsebit.quantization.quantizers import PACT
from sparsebit.quantization.training.distillation import Distillation
from sparsebit.quantization.training.training import TrainingState
from sparsebit.storage import ArtifactError, Fields
from tests.quantization.nets import config, images, residual

CLIPPING = ("alpha", "zero_point")  # only values beyond the grid move these
LABELS = torch.tensor([0, 1, 2, 3])
KINDS = {  # weights, activations
    "uniform": ("uniform", "uniform"),
    "lsq": ("lsq", "lsq"),
    "lsq+": ("lsq+", "lsq+"),
    "pact": ("uniform", "pact"),
    "dorefa": ("dorefa", "dorefa"),
    "adaround": ("adaround", "uniform"),
}


def training(kind: str = "lsq", net: nn.Module | None = None, bits: int = 4, **options: Any) -> QuantModel:
    """Calibrated, in training mode, batch norm in place."""
    weight, activation = KINDS[kind]
    settings = config(
        SCHEDULE={"RECOVERY": [{"adaround": {"steps": 2}}] if kind == "adaround" else []},
        W__QUANTIZER={"BIT": bits, "TYPE": weight},
        A__QUANTIZER={"BIT": bits, "TYPE": activation},
    )
    qmodel = QuantModel(net or residual(), settings, images())
    qmodel.calibrate([images(8)], progress=False)
    qmodel.init_QAT(**options)
    qmodel.train()
    return qmodel


def run(
    qmodel: QuantModel, optimizer: torch.optim.Optimizer, first: int, last: int, noise: int = 7
) -> list[float]:
    """Losses of some steps; the data and the dropout of a step are the same whenever it is taken."""
    losses = []
    for step in range(first, last):
        torch.manual_seed(noise + step)
        outputs = qmodel(images(4, seed=step))
        loss = qmodel.distill(F.cross_entropy(outputs, LABELS))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(qmodel: QuantModel, lr: float = 0.02) -> torch.optim.Optimizer:
    return torch.optim.SGD(qmodel.parameter_groups(lr, quantizer_lr=lr / 10), momentum=0.9)


def test_every_registered_quantizer_is_trained_here() -> None:
    assert set(KINDS) >= set(QUANTIZERS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_ordinary_loop_learns(kind: str) -> None:
    qmodel = training(kind)
    qmodel.model.drop.eval()
    optimizer, x = sgd(qmodel), images(4)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(qmodel(x), LABELS)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        missing = [name for name, p in qmodel.named_parameters() if p.grad is None or not p.grad.any()]
        assert all(name.endswith(CLIPPING) for name in missing), "parameters without a gradient"
        assert all(p.grad is not None and p.grad.isfinite().all() for p in qmodel.parameters())
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1
    assert all(bool((q.grid().scale > 0).all()) for q in qmodel.quantizers.values())


@pytest.mark.parametrize("kind", ["lsq", "lsq+", "pact"])
def test_what_is_learned_moves(kind: str) -> None:
    qmodel = training(kind)
    for quantizer in qmodel.quantizers.values():
        if isinstance(quantizer, PACT):
            quantizer.alpha.data.fill_(0.25)
        elif quantizer.side == "A":
            quantizer.scale.data.mul_(0.6)
    learned = {f"{n}.{k}": p for n, q in qmodel.quantizers.items() for k, p in q.named_parameters()}
    before = {name: p.detach().clone() for name, p in learned.items()}
    run(qmodel, torch.optim.SGD(qmodel.parameters(), lr=0.1), 0, 2)
    assert learned
    still = [name for name, p in learned.items() if torch.equal(p, before[name])]
    assert still == [], "these have not moved"


# -- batch norm -------------------------------------------------------------------------------------------------


def statistics(qmodel: QuantModel) -> list[Tensor]:
    return [b.clone() for m in qmodel.modules() if isinstance(m, nn.BatchNorm2d) for b in m.buffers()]


def test_batch_norm_left_alone_keeps_estimating() -> None:
    qmodel = training(batch_norm="leave")
    before = statistics(qmodel)
    run(qmodel, sgd(qmodel), 0, 1)
    assert not any(torch.equal(a, b) for a, b in zip(before, statistics(qmodel), strict=True))


def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_weights() -> None:
    qmodel = training(batch_norm="freeze")
    before, weight = statistics(qmodel), qmodel.model.bn1.weight.detach().clone()
    qmodel.eval()
    qmodel.train()  # freezing survives a validation in between
    assert not qmodel.model.bn1.training and qmodel.model.drop.training
    run(qmodel, sgd(qmodel), 0, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(qmodel), strict=True))
    assert not torch.equal(weight, qmodel.model.bn1.weight)


@pytest.mark.parametrize("kind", ["uniform", "lsq", "lsq+"])
def test_folded_batch_norm_is_gone_and_the_grids_went_along(kind: str, tmp_path: Path) -> None:
    net = residual()
    own = copy.deepcopy(net.state_dict())
    before = training(kind, residual(), bits=8)
    before.eval()
    qmodel = training(kind, net, bits=8, batch_norm="fold")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in qmodel.modules())
    qmodel.eval()
    step = max(q.scale.max().item() for q in qmodel.quantizers.values() if q.side == "A")
    assert (qmodel(images()) - before(images())).abs().max() < step
    qmodel.train()
    run(qmodel, sgd(qmodel), 0, 2)
    folded = ("conv1", "bn1", "conv2", "bn2")
    assert all(torch.equal(v, own[n]) for n, v in net.state_dict().items() if n.startswith(folded))
    qmodel.eval()
    qmodel.save(tmp_path / "folded")
    assert torch.equal(QuantModel.load(tmp_path / "folded", residual(5))(images()), qmodel(images()))


# -- observers --------------------------------------------------------------------------------------------------


def grids(qmodel: QuantModel) -> dict[str, Tensor]:
    return {name: q.scale.detach().clone() for name, q in qmodel.quantizers.items()}


def test_frozen_observers_keep_their_grids() -> None:
    qmodel = training("uniform", observers="freeze")
    before = grids(qmodel)
    run(qmodel, sgd(qmodel), 0, 2)
    assert all(torch.equal(scale, before[name]) for name, scale in grids(qmodel).items())


def test_updating_observers_follow_weights_and_activations() -> None:
    qmodel = training("uniform", observers="update")
    before = grids(qmodel)
    run(qmodel, sgd(qmodel, lr=0.1), 0, 2)
    after = grids(qmodel)
    assert not any(torch.equal(after[name], before[name]) for name in before)
    weight = qmodel.quantizers["conv2.weight"]
    qmodel(images())
    torch.testing.assert_close(weight.scale, qmodel.model.conv2.weight.detach().abs().amax((1, 2, 3)) / 7)
    qmodel.eval()
    still = grids(qmodel)
    qmodel(images(seed=9) * 5)
    assert all(torch.equal(scale, still[name]) for name, scale in grids(qmodel).items()), "not in evaluation"


def test_one_batch_counts_for_a_tenth() -> None:
    qmodel = training("uniform", observers="update")
    quantizer, x = qmodel.quantizers["x"], images(seed=3) * 4
    scale, zero_point = quantizer.scale.clone(), quantizer.zero_point.clone()
    lo, hi = (0 - zero_point) * scale, (15 - zero_point) * scale
    qmodel(x)
    lo, hi = lo + 0.1 * (x.min() - lo), hi + 0.1 * (x.max() - hi)
    torch.testing.assert_close(quantizer.scale, (hi - lo) / 15)


def test_grids_that_learn_do_not_follow() -> None:
    qmodel = training("lsq", observers="update")
    assert not any(q.following for q in qmodel.quantizers.values())


# -- groups -----------------------------------------------------------------------------------------------------


def test_a_quantizer_that_is_fused_away_asks_for_no_gradient() -> None:
    settings = config(
        W__QUANTIZER={"BIT": 4, "TYPE": "lsq"},
        A__QUANTIZER={"BIT": 4, "TYPE": "lsq"},
    )
    qmodel = QuantModel(residual(), settings, images())
    qmodel.calibrate([images()], progress=False)
    qmodel.quantizers["x"].set_fake_fused()
    qmodel.init_QAT()
    assert not qmodel.quantizers["x"].scale.requires_grad
    assert qmodel.quantizers["fc.weight"].scale.requires_grad


# -- distillation -----------------------------------------------------------------------------------------------


def test_wrong_choices_are_named() -> None:
    qmodel = training("uniform")
    with pytest.raises(SparsebitError, match="batch_norm='thaw'"):
        qmodel.init_QAT(batch_norm="thaw")  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="observers='both'"):
        qmodel.init_QAT(observers="both")  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="weight=2"):
        qmodel.init_QAT(distill=2)
    with pytest.raises(SparsebitError, match="not calibrated"):
        QuantModel(residual(), config(), images()).init_QAT()
    distillation = Distillation(nn.Identity(), 0.5)
    with pytest.raises(SparsebitError, match="no floating-point tensor"):
        distillation.see(torch.zeros(2, dtype=torch.long), (torch.zeros(2),), {})


def test_init_qat_ends_an_open_calibration() -> None:
    qmodel = QuantModel(residual(), config(), images())
    qmodel.prepare_calibration()
    qmodel(images())
    qmodel.init_QAT()
    assert qmodel.enable_qat and all(q.is_enable for q in qmodel.quantizers.values())
    assert not qmodel.training, "calibration was in evaluation mode, and stays so until train()"


# -- checkpoints ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lsq", {}),
        ("lsq+", {"batch_norm": "freeze"}),
        ("pact", {"distill": 0.5}),
        ("uniform", {"observers": "update"}),
        ("dorefa", {"observers": "update", "distill": 0.5}),
    ],
    ids=str,
)
def test_training_goes_on_from_a_checkpoint_bit_for_bit(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    qmodel = training(kind, **options)
    optimizer = sgd(qmodel)
    run(qmodel, optimizer, 0, 3)
    torch.save({"model": qmodel.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "step3.pt")
    expected = run(qmodel, optimizer, 3, 6)

    again = training(kind, **options)  # in another process: the float model, calibrated, then the checkpoint
    optimizer = sgd(again)
    saved = torch.load(tmp_path / "step3.pt", weights_only=True)
    again.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert run(again, optimizer, 3, 6) == expected
    assert all(torch.equal(v, qmodel.state_dict()[n]) for n, v in again.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lsq", {"batch_norm": "fold", "distill": 0.5}),
        ("lsq+", {"batch_norm": "freeze", "distill": 0.25}),
        ("pact", {"observers": "update", "distill": 0.5}),
        ("uniform", {"batch_norm": "freeze", "observers": "update"}),
        ("dorefa", {"batch_norm": "freeze", "observers": "update", "distill": 0.5}),
        ("adaround", {"batch_norm": "fold", "observers": "update", "distill": 0.5}),
    ],
    ids=str,
)
def test_a_saved_model_goes_on_training_bit_for_bit(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    qmodel = training(kind, **options)
    qmodel.model.fc.bias.requires_grad_(False)
    optimizer = sgd(qmodel)
    run(qmodel, optimizer, 0, 3)
    qmodel.save(tmp_path / "step3")
    held = copy.deepcopy(optimizer.state_dict())
    expected = run(qmodel, optimizer, 3, 6)

    again = QuantModel.load(tmp_path / "step3", residual(9))  # other weights, and no second init_QAT
    again.train()
    assert not again.model.fc.bias.requires_grad
    optimizer = sgd(again)
    optimizer.load_state_dict(held)
    assert run(again, optimizer, 3, 6) == expected
    assert all(torch.equal(v, qmodel.state_dict()[n]) for n, v in again.state_dict().items())


def test_a_teacher_that_was_folded_is_loaded_folded(tmp_path: Path) -> None:
    qmodel = training("lsq", batch_norm="fold")
    qmodel.init_QAT(distill=0.5)
    qmodel.save(tmp_path / "folded")
    again = QuantModel.load(tmp_path / "folded", residual(2))
    again.train()
    assert run(again, sgd(again), 0, 2) == run(qmodel, sgd(qmodel), 0, 2)


def test_a_state_dict_needs_no_calibration_before_it() -> None:
    qmodel = training("lsq")
    run(qmodel, sgd(qmodel), 0, 2)
    fresh = QuantModel(residual(3), qmodel.cfg, images())
    fresh.load_state_dict(qmodel.state_dict())
    fresh.init_QAT()
    fresh.train()
    optimizers = [sgd(qmodel), sgd(fresh)]
    losses = [run(m, o, 2, 5) for m, o in zip((qmodel, fresh), optimizers, strict=True)]
    assert losses[0] == losses[1]


def test_a_trained_model_is_saved_and_loaded(tmp_path: Path) -> None:
    for kind, options in (("lsq+", {}), ("uniform", {"observers": "update"}), ("pact", {})):
        qmodel = training(kind, **options)  # type: ignore[arg-type]
        run(qmodel, sgd(qmodel), 0, 2)
        qmodel.eval()
        qmodel.save(tmp_path / kind)
        loaded = QuantModel.load(tmp_path / kind, residual(4))
        assert loaded.enable_qat and torch.equal(loaded(images()), qmodel(images()))


# -- how it is run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uniform", "lsq", "lsq+", "pact", "dorefa"])
def test_autocast_to_bfloat16(kind: str) -> None:
    qmodel = training(kind, bits=8)
    qmodel.model.drop.eval()
    x = images()
    exact = qmodel(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = qmodel(x)
        loss = F.cross_entropy(outputs.float(), LABELS)
    loss.backward()
    assert outputs.dtype == torch.bfloat16
    assert (outputs - exact).abs().max() < 0.1 * exact.abs().max()
    for name, parameter in qmodel.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name


def test_training_and_moving_leave_the_float_model_as_it_was() -> None:
    net = residual().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    qmodel = QuantModel(net, "w4a8", images())
    qmodel.calibrate([images()], progress=False)
    qmodel.init_QAT()
    optimizer = torch.optim.SGD(qmodel.parameters(), lr=0.1)
    qmodel.train()
    qmodel(images()).square().mean().backward()
    optimizer.step()
    qmodel.to(torch.float64)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert any(not torch.equal(p, q) for p, q in zip(qmodel.parameters(), net.parameters(), strict=False))


def test_what_training_was_told_round_trips_through_plain_data() -> None:
    qmodel = training("uniform", observers="update", batch_norm="freeze", distill=0.5)
    state = qmodel.qat.state(qmodel)
    assert state.freeze and state.distill == 0.5 and state.temperature == 4.0 and state.following
    assert Fields(json.loads(json.dumps(asdict(state))), "a folder").into(TrainingState) == state


@pytest.mark.parametrize("temperature", [None, 0.0, -1.0])
def test_half_of_a_distillation_is_refused(temperature: float | None) -> None:
    written = {"freeze": False, "following": [], "held": [], "distill": 0.5, "temperature": temperature}
    with pytest.raises(ArtifactError, match="a distilled model needs a temperature above 0"):
        Fields(written, "a folder").into(TrainingState)


def test_groups_have_rates_of_their_own_and_cover_everything_once() -> None:
    qmodel = training("lsq+")
    groups = qmodel.parameter_groups(0.1, quantizer_lr=0.001, weight_decay=0.01)
    weights, small, learned = groups
    assert [(g["lr"], g["weight_decay"]) for g in groups] == [(0.1, 0.01), (0.1, 0.0), (0.001, 0.0)]
    assert all(p.dim() > 1 for p in weights["params"]) and all(p.dim() == 1 for p in small["params"])
    own = {id(p) for q in qmodel.quantizers.values() for p in q.parameters()}
    assert {id(p) for p in learned["params"]} == own
    ids = [id(p) for g in groups for p in g["params"]]
    assert sorted(ids) == sorted(id(p) for p in qmodel.parameters())
    assert qmodel.parameter_groups(0.1)[2]["lr"] == 0.1
    assert len(training("uniform").parameter_groups(0.1)) == 2
    qmodel.model.conv1.weight.requires_grad_(False)
    assert len(qmodel.parameter_groups(0.1)[0]["params"]) == 2


def test_a_model_without_trainable_parameters_is_told(caplog: pytest.LogCaptureFixture) -> None:
    qmodel = QuantModel(residual().requires_grad_(False), "int8_onnxruntime", images())
    qmodel.calibrate([images()], progress=False)
    qmodel.init_QAT()
    assert "no parameter of this model requires a gradient" in caplog.text
