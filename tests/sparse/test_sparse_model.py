"""SparseModel: the recipe, every criterion and kind of sparsity, schedules, and what it says when it cannot."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.batches import DataError
from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.sparse import SPARSERS, SparseModel, prune
from tests.sparse.nets import assert_same, images, labels, make, perceptron, residual, widths

BATCHES = [(images(), labels()), (images(2), labels(2))]


@pytest.mark.parametrize("name", sorted(SPARSERS))
def test_the_recipe_with_every_criterion(name: str) -> None:
    smodel = make(STRATEGY=name)
    assert_same(smodel(images()), residual()(images()))  # nothing is gone yet
    smodel.calc_params(BATCHES, functional.cross_entropy)
    small = smodel.shrink()
    assert_same(small(images()), smodel(images()))
    # 12 of 24 is rounded to the next multiple of 8.
    assert widths(smodel) == {"stem": 8, "conv1": 16, "fc": 5}
    assert small.conv1.weight.shape == (16, 8, 3, 3)
    assert not hasattr(small.conv1, "sparser")


def test_a_target_of_latency_asks_the_function() -> None:
    asked = []

    def latency(model: nn.Module) -> float:
        asked.append(sum(parameter.numel() for parameter in model.parameters()))
        return float(asked[-1])

    smodel = make(TARGET="latency", ROUND_TO=1)
    with pytest.raises(SparsebitError, match="did not return a time"):
        smodel.calc_params(latency=lambda model: float("nan"))
    smodel.calc_params(latency=latency)
    assert 2 < len(asked) <= 10
    assert smodel.report().params_after <= asked[0] / 2
    reached = smodel.report().reached
    assert reached is not None and reached.met and reached.before == asked[0]


def test_a_target_that_cannot_be_met_is_told(caplog: pytest.LogCaptureFixture) -> None:
    smodel = make(TARGET="params", RATIO=0.9, MAX_RATIO=0.25, ROUND_TO=1)
    smodel.calc_params()
    reached = smodel.report().reached
    assert reached is not None and not reached.met
    assert reached.after == smodel.report().params_after
    assert "but nothing more can be removed" in caplog.text
    assert "but nothing more can be removed" in str(smodel.report())


def test_exact_counts_without_rounding() -> None:
    smodel = make(ROUND_TO=1, RATIO=0.25)
    smodel.calc_params()
    assert widths(smodel) == {"stem": 12, "conv1": 18, "fc": 5}


def test_a_layer_too_narrow_to_round_says_so() -> None:
    smodel = make(ROUND_TO=16)
    smodel.calc_params()
    assert widths(smodel) == {"stem": 16, "conv1": 16, "fc": 5}
    assert "stem: no smaller width is a multiple of ROUND_TO, 16" in str(smodel.report())


def test_all_layers_together() -> None:
    smodel = make(ROUND_TO=1, SCOPE="global", RATIO=0.5)
    smodel.calc_params()
    assert sum(widths(smodel).values()) == 20 + 5
    assert min(widths(smodel).values()) > 0


@pytest.mark.parametrize("kind", ["structured", "unstructured"])
def test_skipped_layers_are_unchanged(kind: str) -> None:
    widths_of = (3, 16, 16, 16, 16, 4)
    net = nn.Sequential(*(nn.Conv2d(i, o, 1) for i, o in itertools.pairwise(widths_of))).double().eval()
    smodel = make(net, TYPE=kind, SKIP_TRACE_MODULES=["1"])
    smodel.calc_params()
    small = smodel.shrink()
    assert torch.equal(small.get_parameter("1.weight"), net.get_parameter("1.weight"))
    assert not torch.equal(small.get_parameter("3.weight"), net.get_parameter("3.weight"))
    assert "pattern '1'" in str(smodel.report())


def test_ignored_layers_keep_their_outputs() -> None:
    smodel = make(IGNORE=["conv1"])
    smodel.calc_params()
    assert widths(smodel)["conv1"] == 24
    assert "pattern 'conv1'" in str(smodel.report())
    with pytest.raises(ConfigError, match="IGNORE"):
        make(IGNORE=["conv9"])


def test_groups_say_what_belongs_together_and_what_cannot_go() -> None:
    text = str(make().groups())
    assert "stem: 16 channels with conv2" in text
    assert "fc: 5 channels; cannot shrink" in text


def test_the_model_given_is_left_alone() -> None:
    net = residual()
    before = copy.deepcopy(net.state_dict())
    smodel = make(net)
    smodel.calc_params()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_training_keeps_removed_channels_away() -> None:
    smodel = make(STRATEGY="l2norm").train()
    optimizer = torch.optim.SGD(smodel.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    for step in range(4):
        if step == 1:
            smodel.calc_params()
        optimizer.zero_grad()
        functional.cross_entropy(smodel(images()), labels()).backward()
        optimizer.step()
    smodel.eval()
    assert_same(smodel.shrink()(images()), smodel(images()))
    small = smodel.shrink()
    functional.cross_entropy(small(images()), labels()).backward()  # an ordinary model: it can be trained on


# -- zeros ---------------------------------------------------------------------------------------------------------


def test_without_example_inputs_zeros_can_still_be_made() -> None:
    smodel = SparseModel(residual(), {"SPARSER": {"TYPE": "unstructed", "STRATEGY": "l1norm", "RATIO": 0.5}})
    smodel.calc_params()
    assert smodel.report().macs_before is None
    assert 0.4 < smodel.report().sparsity < 0.5


# -- schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["structured", "unstructured", "block"])
def test_a_schedule_from_a_plain_training_loop(kind: str) -> None:
    smodel = make(TYPE=kind, ROUND_TO=1, SCHEDULE={"TYPE": "cubic", "START": 1, "EVERY": 2, "TIMES": 2})
    optimizer = torch.optim.SGD(smodel.parameters(), lr=1e-2, momentum=0.9)
    left, gone = [], torch.zeros_like(smodel.model.conv1.weight, dtype=torch.bool)  # type: ignore[union-attr,arg-type]
    for _ in range(7):
        optimizer.zero_grad()
        functional.cross_entropy(smodel(images()), labels()).backward()
        optimizer.step()
        smodel.step()
        left.append(widths(smodel)["conv1"])
        zeros = smodel.model.conv1.weight == 0  # type: ignore[union-attr]
        assert bool((zeros | ~gone).all())  # what is gone stays gone
        gone = zeros
    size = left[0]
    step = 24 if kind == "block" else 1
    assert left[:3] == [size, size, size]
    assert abs(left[3] - size * (1 - 0.4375)) <= step
    assert left[5:] == [size // 2, size // 2]


def test_a_run_goes_on_where_it_stopped() -> None:
    settings: dict[str, Any] = {"ROUND_TO": 1, "SCHEDULE": {"TYPE": "iterative", "EVERY": 2, "TIMES": 3}}
    whole, first, second = make(**settings), make(**settings), make(**settings)
    for _ in range(5):
        whole.step()
    for _ in range(3):
        first.step()
    second.load_state_dict(first.state_dict())
    assert widths(second) == widths(first)
    for _ in range(2):
        second.step()
    assert widths(second) == widths(whole)
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in whole.state_dict().items())


def test_gradients_of_the_training_step_are_enough() -> None:
    smodel = make(STRATEGY="taylor")
    with pytest.raises(DataError, match="between backward"):
        smodel.step()
    smodel = make(STRATEGY="taylor")
    functional.cross_entropy(smodel(images()), labels()).backward()
    assert smodel.step()
    assert widths(smodel)["stem"] == 8
    assert not smodel.step()


def test_a_choice_of_nothing_is_an_error_with_reasons() -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "slimming", "RATIO": 0.5}}
    smodel = SparseModel(perceptron(), config, torch.zeros(1, 6, dtype=torch.float64))
    with pytest.raises(
        SparsebitError, match=r"nothing could be pruned.*Slimming finds nothing to score in this layer"
    ):
        smodel.calc_params()
    with pytest.raises(SparsebitError, match=r"nothing could be pruned"):
        smodel.shrink()
    with pytest.raises(SparsebitError, match=r"nothing could be pruned.*multiple of ROUND_TO, 32"):
        make(ROUND_TO=32).calc_params()
    with pytest.raises(SparsebitError, match=r"is an output of the model(.|\n)*no RATIO helps"):
        SparseModel(nn.Linear(4, 4), config, torch.zeros(1, 4)).calc_params()
    with pytest.raises(
        SparsebitError,
        match=r"nothing could be pruned with SPARSER.RATIO 0\.0(?!.*ROUND_TO)(.|\n)*raise RATIO, or",
    ):
        make(TYPE="unstructured", RATIO=0.0).calc_params()


@pytest.mark.parametrize("kind", ["structured", "unstructured"])
def test_nothing_is_taken_away_before_it_is_chosen(kind: str, tmp_path: Path) -> None:
    smodel = make(TYPE=kind)
    with pytest.raises(SparsebitError, match=r"nothing is pruned yet[\s\S]*next: call calc_params\(\)"):
        smodel.shrink()
    with pytest.raises(SparsebitError, match=r"nothing is pruned yet[\s\S]*next: call calc_params\(\)"):
        smodel.export_onnx(images(), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("settings", [{"CLASSIFIER": True}, {"SPECIFIC": {"fc": {"RATIO": 0.4}}}])
def test_an_output_layer_is_pruned_when_asked(settings: dict[str, Any]) -> None:
    smodel = make(ROUND_TO=1, RATIO=0.4, **settings)
    smodel.calc_params()
    small, kept = smodel.shrink(), smodel.kept()["fc"]
    assert small.fc.out_features == 3
    assert_same(small(images()), smodel(images())[:, kept])
    assert bool((smodel(images())[:, ~kept] == 0).all())


@pytest.mark.parametrize("layer", ["linear", "conv"])
def test_a_lone_layer_is_pruned_when_asked(layer: str) -> None:
    net: nn.Module = nn.Linear(4, 8) if layer == "linear" else nn.Conv2d(4, 8, 1)
    x = torch.randn(2, 4) if layer == "linear" else torch.randn(2, 4, 3, 3)
    config = {
        "SPARSER": {
            "TYPE": "structured",
            "STRATEGY": "l1norm",
            "RATIO": 0.5,
            "ROUND_TO": 1,
            "CLASSIFIER": True,
        }
    }
    smodel = SparseModel(nn.Sequential(net).eval(), config, x)
    smodel.calc_params()
    with torch.no_grad():
        assert torch.allclose(smodel.shrink()(x), net(x)[:, smodel.kept()["0"]], atol=1e-6)


def test_a_model_can_be_pruned_without_a_copy() -> None:
    net = residual()
    smodel = SparseModel(
        net,
        {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}},
        images(),
        copy_model=False,
    )
    assert smodel.model.conv1.weight is net.conv1.weight  # type: ignore[union-attr]
    before = net.conv1.weight.clone()
    small = smodel.shrink_to(smodel.choose())
    assert small.conv1.out_channels == 16
    assert torch.equal(net.conv1.weight, before)  # choosing alone touches no weight


# -- data ----------------------------------------------------------------------------------------------------------


def test_inputs_seen_since_prepare_calibration() -> None:
    smodel, other = make(STRATEGY="activation_norm", ROUND_TO=1), make(STRATEGY="activation_norm", ROUND_TO=1)
    smodel.prepare_calibration()
    buffer = images()
    smodel(buffer)
    smodel(x=buffer.copy_(3 * buffer.flip(0) - 1))  # a loader may fill one tensor again and again
    smodel.calc_params()
    other.calc_params([images(), 3 * images().flip(0) - 1])
    assert torch.equal(smodel.model.conv1.weight, other.model.conv1.weight)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize(("name", "told"), [("hrank", "pass batches"), ("fisher", "and loss=...")])
def test_missing_data_is_told(name: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        make(STRATEGY=name).calc_params()


def test_only_channels_have_groups() -> None:
    with pytest.raises(SparsebitError, match="only channels have groups"):
        make(TYPE="unstructured").groups()


def test_copies_hold_their_own_zeros() -> None:
    smodel = make(TYPE="unstructured")
    smodel.calc_params()
    twin = copy.deepcopy(smodel)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    functional.cross_entropy(twin(images()), labels()).backward()
    optimizer.step()
    assert int((twin.model.conv1.weight == 0).sum()) == 1728  # type: ignore[union-attr]
    twin.model.conv1.sparser.set_ratio(0.9)  # type: ignore[union-attr,operator]
    assert smodel.sparsers["conv1"].ratio == 0.5


def test_the_device_of_a_config_is_one() -> None:
    assert make().to(make().cfg.DEVICE).device.type in ("cpu", "cuda")
    assert make().to(torch.float32).model.conv1.weight.dtype == torch.float32  # type: ignore[union-attr]


def test_a_pickle_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(SparsebitError, match=r"cannot be pickled(.|\n)*smodel.save\(folder\)"):
        torch.save(make(), tmp_path / "model.pt")


class TwoModes(nn.Module):
    """Other operations in training than in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return y if self.training else y.softmax(-1)


def test_a_mode_that_is_refused_switches_nothing() -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel = SparseModel(TwoModes().eval(), config, torch.zeros(2, 4))
    smodel.eval()
    with pytest.raises(SparsebitError, match="cannot switch to training mode"):
        smodel.train()
    assert not any(module.training for module in smodel.modules())
    smodel.model.keep_operations()
    assert smodel.train() is smodel
    assert smodel.training and smodel.model.training


@pytest.mark.parametrize("settings", [{}, {"STRATEGY": "taylor"}, {"SCOPE": "global", "TARGET": "macs"}])
def test_the_default_device_of_torch_changes_nothing(settings: dict[str, Any]) -> None:
    """With ``torch.set_default_device("cuda")``, the labels of channels could not be read as numbers."""
    config = {
        "SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, **settings},
        "DEVICE": "cpu",
    }
    found = []
    for device in ("cpu", "meta"):
        net, x = residual(), images()
        with torch.device(device):
            small = prune(net, config, BATCHES, loss=functional.cross_entropy, example_inputs=x)
        found.append(small(x))
    assert torch.equal(*found)


@pytest.mark.parametrize("strategy", ["taylor", "activation_norm"])
def test_a_model_that_writes_to_its_inputs_starts_every_run_from_the_same_numbers(strategy: str) -> None:
    class Writes(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(3)
            return super().forward(x)

    net, x = Writes(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval(), torch.randn(4, 6).double()
    given, labels = x.clone(), torch.tensor([0, 1, 2, 0])
    settings = {"TYPE": "structured", "STRATEGY": strategy, "RATIO": 0.5, "ROUND_TO": 1}
    smodel = SparseModel(net, {"SPARSER": settings}, given)
    before = smodel(given)
    smodel.calc_params([(given, labels)], loss=nn.functional.cross_entropy)
    assert torch.equal(given, x) and torch.equal(before, net(x.clone()))
    torch.testing.assert_close(smodel.shrink("module")(x.clone()), smodel(given))
