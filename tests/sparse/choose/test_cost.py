"""What a choice would cost is what the smaller model costs."""

from __future__ import annotations

import pytest

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import bind
from tests.sparse.nets import assert_same, images, make


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
