"""Weights that are computed, transposed, or stacked: what is removed with a channel, and what need not be zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsebit import capture
from sparsebit.sparse.channels.find import find_groups
from sparsebit.sparse.shrink import make_plan, shrink_graph


class ComputedWeight(nn.Module):
    """A layer with a weight from a softmax or from a product, then a norm of its results."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(12, 16))
        self.last = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * 2 if self.kind == "product" else self.weight.softmax(-1)
        if self.kind == "convolution":
            y = F.conv1d(x.unsqueeze(-1), weight.unsqueeze(-1)).squeeze(-1)
        else:
            y = F.linear(x, weight)
        out: Tensor = self.last(F.normalize(y, dim=-1))
        return out


@pytest.mark.parametrize(("kind", "free"), [("softmax", False), ("convolution", False), ("product", True)])
def test_a_norm_after_a_computed_weight(kind: str, free: bool) -> None:
    groups = find_groups(capture(ComputedWeight(kind).eval(), torch.randn(2, 16)))
    shrinking = {where.tensor for group in groups.free for where in group.slices}
    assert shrinking == ({"weight", "last.weight"} if free else set())


class Experts(nn.Module):
    """Rows sorted by expert, each multiplied by the two matrices of its own."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transposed = transposed
        first, second = torch.randn(3, 16, 8), torch.randn(3, 4, 8)
        self.first = nn.Parameter(first.mT.contiguous() if transposed else first)
        self.second = nn.Parameter(second.mT.contiguous() if transposed else second)
        self.ends: Tensor
        self.register_buffer("ends", torch.tensor([2, 2, 5], dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.first, self.second) if self.transposed else (self.first.mT, self.second.mT)
        gate, up = torch._grouped_mm(x, first, offs=self.ends).chunk(2, -1)
        out: Tensor = torch._grouped_mm(gate.relu() * up, second, offs=self.ends)
        return out


@pytest.mark.parametrize("transposed", [False, True])
def test_stacked_experts_lose_the_same_channels(transposed: bool) -> None:
    model, x = Experts(transposed).eval(), torch.randn(5, 8)
    gm = capture(model, x)
    groups = find_groups(gm)
    (free,) = groups.free
    assert free.channels == 8 and free.producers == ("first",)
    assert [group.name for group in groups.frozen()] == ["second"]  # the output; experts are not channels
    kept = torch.tensor([True, False, True, True, False, True, False, False])
    small = shrink_graph(gm, make_plan(gm, groups, {free.name: kept}))
    both = torch.cat([kept, kept])
    first, second = (model.first.mT, model.second.mT) if transposed else (model.first, model.second)
    with torch.no_grad():
        first[:, ~both] = 0
        second[..., ~kept] = 0
        assert small.get_parameter("first").numel() == 3 * 8 * 8
        torch.testing.assert_close(small(x), model(x))


class Product(nn.Module):
    """``x @ weight.T``, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.up.T).relu() @ self.down.t()


def test_a_transposed_weight_makes_the_channels_of_its_rows() -> None:
    (free,) = find_groups(capture(Product(), torch.randn(2, 4))).free
    assert free.producers == ("up",)
    roles = {(where.tensor, where.axis): where.role for where in free.slices}
    assert roles == {("up", 0): "output", ("down", 1): "input"}
