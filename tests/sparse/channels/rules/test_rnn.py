"""Recurrent layers: a hidden unit owns its gates, its state and its part of the output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.sparse.channels.rules.groups import groups_of


class Recurrent(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.run = nn.LSTM(4, 6, batch_first=True, **options)  # type: ignore[arg-type]
        self.head = nn.Linear(12 if options else 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.run(x)[0][:, -1])
        return out


def test_a_hidden_unit_owns_its_gates() -> None:
    group = groups_of(Recurrent(), torch.zeros(1, 3, 4)).by_name("run")
    rows = next(where for where in group.slices if where.tensor == "run.weight_ih_l0" and where.axis == 0)
    assert group.channels == 6 and rows.channel.tolist() == [*range(6)] * 4


def test_directions_lose_alike() -> None:
    group = groups_of(Recurrent(bidirectional=True), torch.zeros(1, 3, 4)).by_name("run")
    assert group.channels == 6  # one of each direction
    rows = next(w for w in group.slices if w.tensor == "run.weight_hh_l0_reverse" and w.axis == 1)
    assert sorted(rows.channel.tolist()) == [*range(6)]
