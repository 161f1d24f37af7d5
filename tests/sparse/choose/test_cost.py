"""What a choice would cost is what the smaller model costs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import bind
from sparsebit.sparse import SparseModel
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


def test_a_product_with_a_parameter_costs_what_is_left_of_both() -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(6, 16), nn.Parameter(torch.randn(5, 16))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("nc,oc->no", self.first(x), self.weight)

    settings = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}
    smodel = SparseModel(Mixes(), {"SPARSER": settings}, torch.randn(4, 6))
    smodel.calc_params()
    report = smodel.report()
    assert (report.macs_before, report.macs_after) == (4 * 16 * (6 + 5), 4 * 8 * (6 + 5))
