"""The search: the order of trials, when it stops, and that it goes on after it was killed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.recipes import Trial, apply_recipe, compress, search
from sparsebit.recipes.space import LEVELS
from sparsebit.storage.typed import to_plain
from tests.recipes.searching import Batches, by_config, names


def test_levels_build_on_the_best_so_far(net: nn.Module, batches: Batches) -> None:
    def score(model: QuantModel) -> float:
        right = [model.cfg.A.OBSERVER.TYPE == "minmax", model.cfg.FIRST_LAST == "float"]
        right.append([step.name for step in model.cfg.SCHEDULE.RECOVERY] == ["bias_correction"])
        return 0.6 + 0.1 * sum(right)

    found = compress(net, batches, size=0.9, max_drop=0.1, metric=by_config(score), ratios=(0.0,))
    assert found.met and found.measured.metric == pytest.approx(0.9)
    assert (
        found.best.name
        == "8-bit weights + minmax activations + first and last layer in float + bias correction"
    )
    assert found.recipe.quantize.FIRST_LAST == "float"
    assert names(found).index("8-bit weights + percentile activations") < names(found).index(found.best.name)


def test_a_placement_that_changes_nothing_is_not_measured(net: nn.Module, batches: Batches) -> None:
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()  # no additions
    data = [(torch.randn(8, 8), torch.zeros(8, dtype=torch.int64))]
    found = compress(plain, data, size=0.9, max_drop=0.0, metric=by_config(lambda m: 0.5), ratios=(0.0,))
    skipped = next(trial for trial in found.trials if trial.name.endswith("additions in float"))
    assert skipped.measured is None and skipped.failed == "the same quantizers at the same places"


def test_it_goes_on_where_it_was_killed(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    asked: list[int] = []

    def metric(model: nn.Module) -> float:
        asked.append(1)
        with torch.no_grad():
            return sum(float((model(x).argmax(1) == y).float().mean()) for x, y in batches) / len(batches)

    def killed(trial: Trial) -> None:
        if trial.name.startswith("mixed"):
            raise KeyboardInterrupt

    options: dict[str, Any] = {
        "size": 0.12,
        "max_drop": 0.0,
        "metric": metric,
        "ratios": (0.0,),
        "target": "virtual",
    }
    with pytest.raises(KeyboardInterrupt):
        compress(net, batches, folder=tmp_path / "a", on_trial=killed, **options)
    before = len(asked)
    resumed = compress(net, batches, folder=tmp_path / "a", **options)
    resumed_calls = len(asked) - before
    whole = compress(net, batches, folder=tmp_path / "b", **options)
    whole_calls = len(asked) - before - resumed_calls
    assert resumed_calls == whole_calls - before + 1  # and the float model, to compare its metric
    assert names(resumed) == names(whole)
    assert [t.measured for t in resumed.trials] == [t.measured for t in whole.trials]
    assert resumed.yaml == whole.yaml
    assert torch.equal(resumed.model(batches[0][0]), whole.model(batches[0][0]))


def test_the_same_seed_gives_the_same_result(net: nn.Module, batches: Batches) -> None:
    first, second = (
        compress(net, batches, max_drop=0.05, target="virtual", ratios=(0.0,), seed=7) for _ in range(2)
    )
    assert [(t.name, t.measured, t.recipe) for t in first.trials] == [
        (t.name, t.measured, t.recipe) for t in second.trials
    ]
    assert first.best.name == second.best.name and first.yaml == second.yaml


def test_without_a_goal_it_gets_as_small_as_the_drop_allows(net: nn.Module, batches: Batches) -> None:
    narrow = by_config(lambda m: 1.0 if min(q.bit for q in m.quantizers.values()) >= 4 else 0.0)
    found = compress(net, batches, max_drop=0.05, metric=narrow, ratios=(0.0,))
    assert found.met and found.best.name == "4-bit weights"
    assert found.measured.bytes == min(t.measured.bytes for t in found.trials if t.measured)


def test_onnx_runtime_is_asked_for_the_time(net: nn.Module, batches: Batches) -> None:
    pytest.importorskip("onnxruntime")
    found = compress(
        net, batches, speedup=1000, max_drop=1.0, ratios=(0.0,), example_inputs=(batches[0][0][:1],)
    )
    assert not found.met and found.measured.seconds is not None and found.base.seconds is not None
    assert "short of 1e+03" in found.limits[0]
    assert "already runs on integers" in found.limits[0] or "run in float" in found.limits[0]


def test_the_time_budget_also_ends_a_search_in_which_every_trial_fails(
    net: nn.Module, batches: Batches
) -> None:
    tried: list[Trial] = []
    nothing = by_config(lambda model: math.nan)
    with pytest.raises(SparsebitError, match=r"(?s)not a number.*time budget of 0 s is used up; raise it"):
        compress(net, batches, size=0.1, time_budget=0, metric=nothing, on_trial=tried.append)
    assert len(tried) == 1


def test_buffers_that_a_model_writes_stay_those_of_the_user(batches: Batches) -> None:
    class Counts(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x.flatten(1)[:, :8])

    net = Counts().eval()
    found = compress(net, batches, size=0.2, max_drop=1.0, ratios=(0.5,))
    assert found.recipe.prune is not None and found.float_model.get_buffer("calls") == net.calls == 0


def test_the_time_budget_ends_it_and_says_so(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.1, time_budget=0)
    assert names(found) == ["8-bit weights"]
    assert found.stopped == "the time budget of 0 s is used up"
    assert any(limit.startswith("time: the search was not over") for limit in found.limits)


def test_a_pruned_model_is_trained_once_and_kept(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    trained: list[bool] = []

    def finetune(model: nn.Module) -> None:
        trained.append(model.training)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.001

    options: dict[str, Any] = {"size": 0.15, "max_drop": 1.0, "ratios": (0.5,), "finetune": finetune}
    first = compress(net, batches, folder=tmp_path, **options)
    assert trained == [True] and first.recipe.finetune and not first.float_model.training
    second = compress(net, batches, folder=tmp_path, **options)
    assert trained == [True]
    assert torch.equal(first.model(batches[0][0]), second.model(batches[0][0]))
    recipe, example = tmp_path / "recipe.yaml", (batches[0][0],)
    with pytest.raises(SparsebitError, match="trains the pruned model"):
        apply_recipe(recipe, net, batches, example)
    again = apply_recipe(recipe, net, batches, example, finetune=finetune)
    assert torch.equal(again(*example), first.model(*example))


def test_a_metric_that_is_no_number_meets_no_goal(net: nn.Module, batches: Batches) -> None:
    broken = by_config(lambda m: float("nan") if min(q.bit for q in m.quantizers.values()) < 8 else 0.5)
    found = compress(net, batches, metric=broken, max_drop=0.1, size=0.2, ratios=(0.0,))
    assert not found.met and found.best.name == "8-bit weights"
    assert {trial.failed for trial in found.trials if trial.measured is None} == {
        "its metric is not a number"
    }
    with pytest.raises(SparsebitError, match="metric of the float model is NaN"):
        compress(net, batches, metric=lambda m: float("nan"), size=0.2)


def test_a_search_that_is_called_again_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after its end, and wherever it was stopped: trials of later levels do not change what earlier ones saw."""
    monkeypatch.setattr(search, "LEVELS", LEVELS[:2])  # the quick ones
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    model = nn.Sequential(*layers).eval()
    x = [torch.randn(32, 3, 8, 8) for _ in range(2)]
    data = [(a, model(a).argmax(1)) for a in x]
    options: dict[str, Any] = {"max_drop": 0.0, "size": 0.16, "ratios": (0.0,), "time_budget": 1e6}

    class Stop(Exception):
        pass

    def stop_after(count: int) -> Callable[[object], None]:
        left = [count]

        def told(_: object) -> None:
            left[0] -= 1
            if not left[0]:
                raise Stop

        return told

    whole = compress(model, data, folder=tmp_path / "whole", **options)
    again = compress(model, data, folder=tmp_path / "whole", **options)
    assert to_plain(again.trials) == to_plain(whole.trials)
    assert again.best == whole.best and again.stopped == whole.stopped
    for count in (len(whole.trials) // 2,):
        with pytest.raises(Stop):
            compress(model, data, folder=tmp_path / str(count), on_trial=stop_after(count), **options)
        resumed = compress(model, data, folder=tmp_path / str(count), **options)
        assert [t.name for t in resumed.trials] == [t.name for t in whole.trials]
        assert [t.measured for t in resumed.trials] == [t.measured for t in whole.trials]
        assert resumed.best.name == whole.best.name and resumed.yaml == whole.yaml
