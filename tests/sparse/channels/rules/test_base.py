"""Arguments as rules read them: constants, recorded sizes, and what must not be computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import bind
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.channels.rules import Stop, Visit
from sparsebit.sparse.channels.rules.base import number
from sparsebit.sparse.channels.trace import Trace


class Cumulated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).cumsum(-1).reshape(x.shape[0], 4)


def test_arguments_of_a_call() -> None:
    gm = capture(Cumulated().eval(), torch.zeros(2, 3))
    calls = {node.name: call for node in gm.graph.nodes if (call := bind(gm, node)) is not None}
    visits = {name: Visit(Trace(gm), call) for name, call in calls.items()}
    assert visits["cumsum"].dim(2) == 1 and visits["cumsum"].shape == (2, 4)
    assert visits["cumsum"].why.startswith("cumsum at node 'cumsum'")
    with pytest.raises(Stop, match="groups is computed"):
        visits["cumsum"].integer("groups")
    sizes = calls["reshape"].arguments["shape"]
    assert [number(size) for size in sizes] == [2, 4]  # type: ignore[attr-defined]
    assert visits["a"].layer_name("a.weight") == "a"


def test_a_computed_bias_is_tied_to_its_channels() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.shift = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
            self.last = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(nn.functional.linear(x, self.weight, self.shift.sigmoid()))
            return out

    groups = find_groups(capture(Biased().eval(), torch.zeros(2, 3)))
    assert {where.tensor for where in groups.by_name("weight").slices} == {"weight", "shift", "last.weight"}
