"""A small residual network, its data and a quick config."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.analysis import Sensitivity, sensitivity
from sparsebit.quantization import parse_qconfig


class Net(nn.Module):
    """A residual block between convolutions, a layer that is called twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.after = nn.Conv2d(8, 8, 1)
        self.twice, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.stem(images))
        x = self.after(torch.relu(x + self.inner(x))).mean((2, 3))
        return self.head(self.twice(self.twice(x)))


FAST = ("W.OBSERVER.TYPE=minmax", "A.OBSERVER.TYPE=minmax")


CONFIG = parse_qconfig("w4a8", ["DEVICE=cpu", "FIRST_LAST=null", *FAST])


def measured(net: nn.Module, batches: list[tuple[Tensor, Tensor]], **options: object) -> Sensitivity:
    example = (batches[0][0],)
    return sensitivity(net, CONFIG, batches, example_inputs=example, progress=False, **options)  # type: ignore[arg-type]
