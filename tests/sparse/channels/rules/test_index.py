"""Tables keep their vocabulary; a constant fill that is joined to channels shrinks with them; empty slices do too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.sparse import SparseModel


class Tied(nn.Module):
    """The table also makes channels that another layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.mix = nn.Linear(8, 8)
        self.last = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        scores = F.linear(torch.tanh(self.mix(self.table(ids))), self.table.weight)
        y: Tensor = self.last(torch.relu(scores))
        return y


def test_a_tied_table_keeps_its_vocabulary() -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
    smodel = SparseModel(Tied().eval(), config, torch.arange(8).reshape(2, 4))
    smodel.calc_params()
    small, ids = smodel.shrink(), torch.arange(20).reshape(2, 10)
    assert small.table.weight.shape == (20, 4)  # type: ignore[union-attr]
    assert "looks rows up" in str(smodel.groups())
    with torch.no_grad():
        assert torch.allclose(small(ids), smodel(ids), atol=1e-6)


class ShiftedHeads(nn.Module):
    """Zeros are put beside the scores of every head, as in relative positions."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (one(x).view(b, t, 4, 2).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1)
        scores = torch.cat([scores.new_zeros(b, scores.shape[1], t, 1), scores], -1)[..., 1:]
        y: Tensor = self.last((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))
        return y


def test_zeros_that_are_joined_to_heads_shrink_with_the_heads() -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
    smodel, x = SparseModel(ShiftedHeads().eval(), config, torch.randn(2, 5, 8)), torch.randn(3, 6, 8)
    smodel.calc_params()
    small = smodel.shrink()
    assert small.q.weight.shape == (4, 8)  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.allclose(small(x), smodel(x), atol=1e-6)


class PartlyRotated(nn.Module):
    """The dims of every head behind ``rotated`` are joined again as they are; there may be none."""

    def __init__(self, rotated: int) -> None:
        super().__init__()
        self.rotated = rotated
        self.heads, self.last = nn.Linear(8, 16), nn.Linear(16, 5)
        self.register_buffer("turn", torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.heads(x).view(len(x), 4, 4)
        first, rest = heads[..., : self.rotated], heads[..., self.rotated :]
        y: Tensor = self.last(torch.cat([first * self.turn[: self.rotated], rest], -1).flatten(1))
        return y


@pytest.mark.parametrize("rotated", [2, 4])
def test_heads_of_which_nothing_is_left_over_can_be_removed(rotated: int) -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
    x = torch.randn(3, 8)
    smodel = SparseModel(PartlyRotated(rotated).eval(), config, x)
    smodel.calc_params()
    small = smodel.shrink()
    assert small.heads.weight.shape == (8, 8)  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.allclose(small(x), smodel(x), atol=1e-6)
