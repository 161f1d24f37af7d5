"""What limits a search that misses its goals, in words."""

from __future__ import annotations

import pytest
from torch import nn

from sparsebit.quantization import QuantModel
from sparsebit.recipes import GoalsNotMet, compress
from tests.recipes.searching import Batches, by_config, lost_to_pruning, names


def test_a_size_that_cannot_be_reached_is_told_with_what_limits_it(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.01, max_drop=1.0, ratios=(0.0,))
    assert not found.met and set(found.missed) == {"size"}
    assert found.best.name == "4-bit weights"  # the nearest
    (limit,) = found.limits
    assert "too much" in limit and "the part in float" in limit
    failed = next(trial for trial in found.trials if trial.name.startswith("mixed"))
    assert "no choice of bits fits" in failed.failed
    assert "goals NOT met" in found.verdict
    with pytest.raises(GoalsNotMet, match="no recipe reaches"):
        found.require_met()


def test_accuracy_that_cannot_be_kept_is_told_with_the_layers(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.5, max_drop=0.1, metric=by_config(lambda m: 0.25), ratios=(0.0,))
    assert set(found.missed) == {"metric"} and found.stopped == "everything was tried"
    (limit,) = found.limits
    assert "it loses 0.75, 0.65 more than the allowed 0.1" in limit and "dB" in limit
    only_pruned = compress(
        net, batches, size=0.2, max_drop=0.1, ratios=(0.5,), metric=lambda m: 1.0 - lost_to_pruning(m)
    )
    assert "pruning alone, without training, loses 0.5 of it" in only_pruned.limits[0]


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


def test_operators_that_have_no_integer_kernel_are_named(batches: Batches) -> None:
    pytest.importorskip("onnxruntime")
    width = batches[0][0][0].numel()
    swish = nn.Sequential(nn.Flatten(), nn.Linear(width, 16), nn.Hardswish(), nn.Linear(16, 3)).eval()
    slow = compress(
        swish,
        batches,
        speedup=50,
        max_drop=1.0,
        latency=lambda model: 1.0,
        ratios=(0.0,),
        target="onnxruntime",
    )
    (limit,) = [text for text in slow.limits if text.startswith("speed")]
    assert "these have no integer kernel and compute in float: " in limit and "HardS" in limit
    assert "preset int8_openvino" in limit
