"""The search for a recipe: what it tries, when it stops, what it says, and that it goes on after it was killed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis.size import quantized_bytes
from sparsebit.config import load_qconfig
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.recipes import Compressed, GoalsNotMet, Trial, apply_recipe, compress, search
from sparsebit.recipes.space import LEVELS
from sparsebit.sparse import load as load_pruned
from sparsebit.storage.json_text import canonical
from sparsebit.storage.typed import to_plain

Batches = list[tuple[Tensor, Tensor]]


class Net(nn.Module):
    """Enough channels to prune, a batch norm to re-estimate, a skip to place quantizers around."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.inner, self.head = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.classes = nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(images)))
        x = torch.relu(self.head(torch.relu(x + self.inner(x))))
        return self.classes(x.mean((2, 3)))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def batches(net: nn.Module) -> Batches:
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(32, 3, 6, 6, generator=generator) for _ in range(2)]
    with torch.no_grad():
        return [(x, net(x).argmax(1)) for x in images]


def by_config(score: Callable[[QuantModel], float]) -> Callable[[nn.Module], float]:
    """A metric that looks at what was done instead of at data."""
    return lambda model: score(model) if isinstance(model, QuantModel) else 1.0


def names(found: Compressed) -> list[str]:
    return [trial.name for trial in found.trials]


def test_the_cheapest_recipe_that_is_enough_is_taken(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.4, max_drop=0.1)
    assert found.met and names(found) == ["8-bit weights"] and found.stopped == "the goals are met"
    assert found.measured.bytes == quantized_bytes(found.model) <= 0.4 * found.base.bytes
    assert found.base.bytes == sum(4 * p.numel() for p in net.parameters())
    assert found.require_met() is found and found.limits == ()
    assert "goals met" in str(found)


def test_a_smaller_size_takes_mixed_bits_and_the_yaml_does_it_again(
    net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    found = compress(net, batches, size=0.2, max_drop=0.2, target="virtual")
    assert found.met and found.best.name == "mixed bits within the size"
    assert found.measured.bytes <= 0.2 * found.base.bytes
    assert len({q.bit for q in found.model.quantizers.values() if q.side == "W"}) > 1
    (tmp_path / "recipe.yaml").write_text(found.yaml)
    again = apply_recipe(tmp_path / "recipe.yaml", net, batches, (batches[0][0],))
    assert torch.equal(again(batches[0][0]), found.model(batches[0][0]))


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
    assert resumed_calls == whole_calls - before
    assert names(resumed) == names(whole)
    assert [t.measured for t in resumed.trials] == [t.measured for t in whole.trials]
    assert resumed.yaml == whole.yaml
    assert torch.equal(resumed.model(batches[0][0]), whole.model(batches[0][0]))


@pytest.fixture(autouse=True)
def without_heavy_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has tests of its own, and would take minutes here."""
    from sparsebit.recipes import search, space

    monkeypatch.setattr(search, "LEVELS", space.LEVELS[:3])


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


def test_a_size_that_cannot_be_reached_is_told_with_what_limits_it(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.01, max_drop=1.0, ratios=(0.0,))
    assert not found.met and set(found.missed) == {"size"}
    assert found.best.name == "4-bit weights"  # the nearest
    (limit,) = found.limits
    assert "too many" in limit and "stays in float" in limit
    failed = next(trial for trial in found.trials if trial.name.startswith("mixed"))
    assert "no choice of bits fits" in failed.failed
    assert "goals NOT met" in found.verdict
    with pytest.raises(GoalsNotMet, match="no recipe reaches"):
        found.require_met()


def test_accuracy_that_cannot_be_kept_is_told_with_the_layers(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.5, max_drop=0.1, metric=by_config(lambda m: 0.25), ratios=(0.0,))
    assert set(found.missed) == {"metric"} and found.stopped == "everything was tried"
    (limit,) = found.limits
    assert "it loses 0.75, 0.65 more than the 0.1 allowed" in limit and "dB" in limit
    only_pruned = compress(
        net, batches, size=0.2, max_drop=0.1, ratios=(0.5,), metric=lambda m: 1.0 - _pruned(m)
    )
    assert "pruning alone, without training, loses 0.5 of it" in only_pruned.limits[0]


def _pruned(model: nn.Module) -> float:
    return 0.5 if sum(p.numel() for p in model.parameters()) < 10_000 else 0.0


def test_speed_is_measured_and_what_limits_it_is_said(net: nn.Module, batches: Batches) -> None:
    def seconds(model: nn.Module) -> float:
        work = sum(p.numel() for p in model.parameters())
        return work * (0.5 if isinstance(model, QuantModel) else 1.0)

    flat = by_config(lambda m: 1.0)
    found = compress(
        net, batches, speedup=2.4, metric=flat, latency=seconds, example_inputs=(batches[0][0][:1],)
    )
    assert found.met and found.best.recipe is not None and found.best.recipe.prune is not None
    assert found.speedup is not None and found.speedup >= 2.4
    assert names(found)[0] == "8-bit weights"  # cheapest first
    assert found.float_model is not net and found.recipe.reestimate
    slow = compress(net, batches, speedup=50, metric=flat, latency=seconds, ratios=(0.0,), target="virtual")
    assert set(slow.missed) == {"speedup"} and "short of 50" in slow.limits[0]


def test_onnx_runtime_is_asked_for_the_time(net: nn.Module, batches: Batches) -> None:
    pytest.importorskip("onnxruntime")
    found = compress(
        net, batches, speedup=1000, max_drop=1.0, ratios=(0.0,), example_inputs=(batches[0][0][:1],)
    )
    assert not found.met and found.measured.seconds is not None and found.base.seconds is not None
    assert "short of 1e+03" in found.limits[0]
    assert "runs on integers already" in found.limits[0] or "run in float" in found.limits[0]


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
    with pytest.raises(SparsebitError, match="trains the pruned model on"):
        apply_recipe(tmp_path / "recipe.yaml", net, batches, (batches[0][0],))


def test_the_folder_holds_all_of_it(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    found = compress(net, batches, size=0.15, max_drop=1.0, ratios=(0.5,), folder=tmp_path)
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["met"] is True and data["best"]["name"] == found.best.name
    small = load_pruned(tmp_path / "pruned", net)
    loaded = QuantModel.load(tmp_path / "quantized", small)
    assert torch.equal(loaded(batches[0][0]), found.model(batches[0][0]))
    again = apply_recipe(tmp_path / "recipe.yaml", net, batches, (batches[0][0],))
    assert torch.equal(again(batches[0][0]), found.model(batches[0][0]))


def test_a_folder_of_another_search_is_refused(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    compress(net, batches, size=0.4, max_drop=1.0, folder=tmp_path)
    with pytest.raises(SparsebitError, match="begun with another goals"):
        compress(net, batches, size=0.3, max_drop=1.0, folder=tmp_path)
    torch.manual_seed(1)
    with pytest.raises(SparsebitError, match="begun with another model"):
        compress(Net().eval(), batches, size=0.4, max_drop=1.0, folder=tmp_path)


def test_mistakes_are_told_before_any_work(net: nn.Module, batches: Batches) -> None:
    with pytest.raises(SparsebitError, match="no target named 'npu'"):
        compress(net, batches, target="npu")
    with pytest.raises(SparsebitError, match="gave no batch"):
        compress(net, [])
    with pytest.raises(SparsebitError, match="not clear how good"):
        compress(net, [batches[0][0]], size=0.3)
    with pytest.raises(SparsebitError, match="no runtime here to measure the speed of tensorrt"):
        compress(net, batches, target="tensorrt", speedup=2)
    with pytest.raises(SparsebitError, match="training mode"):
        compress(Net().train(), batches)
    for wrong in ({"max_drop": -1.0}, {"speedup": 0.0}, {"size": -2.0}):
        with pytest.raises(SparsebitError, match=f"{next(iter(wrong))}: expected"):
            compress(net, batches, **wrong)  # type: ignore[arg-type]


def test_an_error_in_the_users_metric_is_the_users_to_see(net: nn.Module, batches: Batches) -> None:
    def broken(model: nn.Module) -> float:
        if isinstance(model, QuantModel):
            raise ZeroDivisionError("mine")
        return 1.0

    with pytest.raises(ZeroDivisionError, match="mine"):
        compress(net, batches, metric=broken, size=0.5)


def test_the_model_is_left_as_it_was(net: nn.Module, batches: Batches) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    compress(net, batches, size=0.15, max_drop=1.0, ratios=(0.0, 0.5), exhaustive=False)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not net.training and all(p.requires_grad for p in net.parameters())
    assert load_qconfig("int8_onnxruntime").W.QUANTIZER.BIT == 8


class Named(nn.Module):
    """Takes its inputs by name alone, in another order than a batch has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, *, mask: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.second(torch.relu(self.first(ids)) * mask)}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_batches_that_are_dicts_are_judged_and_timed(target: str) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip(target)
    torch.manual_seed(0)
    model = Named().eval()
    inputs = [{"ids": torch.randn(16, 8), "mask": torch.ones(16, 1)} for _ in range(2)]
    labelled = [{**batch, "labels": model(**batch)["logits"].argmax(1)} for batch in inputs]
    found = compress(model, labelled, speedup=1e-6, max_drop=0.2, target=target, ratios=(0.0,))
    assert found.base.metric == 1.0 and found.met
    assert found.base.seconds and found.measured.seconds


def test_a_metric_that_is_no_number_meets_no_goal(net: nn.Module, batches: Batches) -> None:
    broken = by_config(lambda m: float("nan") if min(q.bit for q in m.quantizers.values()) < 8 else 0.5)
    found = compress(net, batches, metric=broken, max_drop=0.1, size=0.2, ratios=(0.0,))
    assert not found.met and found.best.name == "8-bit weights"
    assert {trial.failed for trial in found.trials if trial.measured is None} == {
        "its metric is not a number"
    }
    with pytest.raises(SparsebitError, match="metric of the float model is not a number"):
        compress(net, batches, metric=lambda m: float("nan"), size=0.2)


def test_a_damaged_state_is_refused(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(SparsebitError, match="cannot be read"):
        compress(net, batches, size=0.5, folder=tmp_path)


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


@pytest.mark.parametrize("kind", ["digest", "metric", "trials", "nested", "pipe", "text"])
def test_an_edited_state_of_a_search_is_refused(
    net: nn.Module, batches: Batches, tmp_path: Path, kind: str
) -> None:
    options: dict[str, Any] = {"size": 0.4, "max_drop": 1.0, "folder": tmp_path}
    compress(net, batches, **options)
    path = tmp_path / "search.json"
    content = json.loads(path.read_text())
    if kind == "digest":
        content["trials"][0]["measured"]["metric"] = 7.5
    elif kind == "metric":
        content["trials"][0]["measured"]["metric"] = "much"
    elif kind == "trials":
        content["trials"] = {"a": 1}
    if kind in ("metric", "trials"):
        content["digest"] = hashlib.sha256(
            canonical({key: value for key, value in content.items() if key != "digest"})
        ).hexdigest()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("[" * 9999 if kind == "nested" else "?" if kind == "text" else json.dumps(content))
    with pytest.raises(SparsebitError, match=r"search.json"):
        compress(net, batches, **options)
