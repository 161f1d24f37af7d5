"""Embedding tables: rows are looked up by value, so a vocabulary never shrinks."""

from __future__ import annotations

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
