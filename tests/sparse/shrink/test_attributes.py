"""Layers know their new sizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.sparse import prune

HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


def test_sizes_of_layers() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.PReLU(8), nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(1, 8),
        nn.Flatten(2), nn.Unflatten(2, (2, 2)), nn.Flatten(), nn.Linear(32, 8), nn.LayerNorm(8), nn.Linear(8, 2),
    )  # fmt: skip
    small = prune(net.eval(), HALF, example_inputs=torch.zeros(1, 3, 6, 6))
    expected = [
        "Conv2d(3, 4",
        "BatchNorm2d(4",
        "PReLU(num_parameters=4)",
        "Conv2d(4, 4, kernel_size=(3, 3), stride=(1, 1), groups=4)",
        "GroupNorm(1, 4",
        "Linear(in_features=16, out_features=4",
        "LayerNorm((4,)",
        "Linear(in_features=4, out_features=2",
    ]
    assert [part for part in expected if part not in str(small)] == []


def test_sizes_of_recurrent_layers_and_tables() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.run, self.head = (
                nn.Embedding(9, 8),
                nn.GRU(8, 6, batch_first=True),
                nn.Linear(6, 2),
            )

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.head(self.run(self.table(ids))[0][:, -1])
            return out

    small = prune(Text().eval(), HALF, example_inputs=torch.zeros(1, 3, dtype=torch.int64))
    assert small.table.embedding_dim == 4  # type: ignore[union-attr]
    assert (small.run.input_size, small.run.hidden_size) == (4, 3)  # type: ignore[union-attr]
