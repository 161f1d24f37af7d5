"""Sizes that a forward computes with: right at every batch, also behind a division that rounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.sparse import SparseModel

HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


def split_heads(y: Tensor) -> Tensor:
    return (
        y.view(y.size(0), y.size(1), 4, -1)
        .permute(0, 2, 1, 3)
        .contiguous()
        .view(-1, y.size(1), y.size(2) // 4)
    )


class RelativeAttention(nn.Module):
    """Repeats keys by a number computed from the count of heads, as DeBERTa does."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.last = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        self.table = nn.Parameter(torch.randn(6, 32))

    def forward(self, x: Tensor) -> Tensor:
        q = split_heads(self.q(x))
        k = split_heads(self.k(self.table[None])).repeat(q.size(0) // 4, 1, 1)
        y = torch.bmm(torch.bmm(q, k.transpose(-1, -2)), k)
        out: Tensor = self.last(y.view(-1, 4, y.size(-2), 8).permute(0, 2, 1, 3).flatten(2))
        return out


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_a_size_divided_by_the_count_of_heads(batch: int) -> None:
    torch.manual_seed(0)
    smodel = SparseModel(
        RelativeAttention().double().eval(), HALF, torch.randn(2, 7, 32, dtype=torch.float64)
    )
    smodel.calc_params()
    small, x = smodel.shrink(), torch.randn(batch, 7, 32, dtype=torch.float64)
    assert small.q.out_features == 16
    with torch.no_grad():
        assert torch.allclose(small(x), smodel(x))


class JoinedAttention(nn.Module):
    """Joins tensors along the batch, takes the first part again, and folds the heads into the batch."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.join = join
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 5)
        if join == "encoder":
            self.attention: nn.Module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        else:
            self.attention = nn.MultiheadAttention(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        both = torch.cat([y, x], 0)
        y = both[: y.shape[0]] if self.join == "slice" else both.chunk(2)[0]
        if self.join == "encoder":
            y = self.attention(y)
        else:
            y = y.transpose(0, 1)
            y = self.attention(y, y, y)[0].transpose(0, 1)
        out: Tensor = self.last(y)
        return out


@pytest.mark.parametrize("join", ["slice", "chunk", "encoder"])
def test_a_batch_that_was_joined_and_cut_is_not_a_constant(join: str) -> None:
    torch.manual_seed(0)
    net = JoinedAttention(join).double().eval()
    smodel = SparseModel(net, HALF, torch.randn(2, 6, 16, dtype=torch.float64))
    smodel.calc_params()
    small = smodel.shrink()
    assert any(small.get_parameter(n).shape != p.shape for n, p in net.named_parameters() if "in_proj" in n)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 6, 16, dtype=torch.float64)
        with torch.no_grad():
            assert small(x).shape == (batch, 6, 5)
            if join != "encoder":  # its norms take their statistics over the channels that are left
                assert torch.allclose(small(x), smodel(x))
