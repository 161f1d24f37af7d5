"""What a choice would cost is what the smaller model costs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import bind
from sparsebit.sparse import SparseModel
from tests.sparse.nets import images, residual


def make(net: nn.Module | None = None, **settings: Any) -> SparseModel:
    sparser = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}
    top = {key: settings.pop(key) for key in ("IGNORE", "SCHEDULE") if key in settings}
    return SparseModel(
        net or residual(), {"SPARSER": {**sparser, **settings}, **top}, example_inputs=images()
    )


def assert_same(one: Tensor, other: Tensor) -> None:
    assert float((one - other).detach().abs().max() / other.detach().abs().max()) < 1e-12


@pytest.mark.parametrize("target", ["params", "macs"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_cost_that_is_reported_is_that_of_the_small_model(target: str, scope: str) -> None:
    smodel = make(TARGET=target, SCOPE=scope, ROUND_TO=1, RATIO=0.4)
    smodel.calc_params()
    report, small = smodel.report(), smodel.shrink()
    assert report.params_after == sum(parameter.numel() for parameter in small.parameters())
    again = capture(small, images())
    calls = [bind(again, node) for node in again.graph.nodes if node.op.startswith("call_")]
    assert report.macs_after == sum(call.macs for call in calls if call is not None)
    assert report.macs_before
    left = (
        report.params_after / report.params_before
        if target == "params"
        else report.macs_after / report.macs_before
    )
    assert 0.5 < left <= 0.6
    assert_same(small(images()), smodel(images()))
