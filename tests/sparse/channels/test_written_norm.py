"""A norm is what shifting or scaling its input does not change, however it is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import find_groups

Step = Callable[[Tensor], Tensor]


class Written(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.first, self.last, self.step = nn.Linear(6, 8), nn.Linear(8, 3), step

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.step(self.first(x)))
        return out


def rms(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


NORMS: list[Step] = [
    rms,
    lambda x: rms(x + x.relu()),  # of a sum of two branches
    lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
    lambda x: (x - torch.var_mean(x, -1, keepdim=True)[1]) * 2,
    lambda x: x / x.square().mean(-1, keepdim=True).clamp_min(1e-6) ** 0.5,
]
OTHERS: list[Step] = [
    lambda x: x + x.mean(-1, keepdim=True),
    lambda x: x * x.mean(-1, keepdim=True),
    lambda x: x.mean(-1, keepdim=True) - x,
    lambda x: x * torch.sigmoid(-x.mean(-1, keepdim=True)),
    lambda x: x * 0 + x.mean(-1, keepdim=True) / (x.mean(-1, keepdim=True) + 1),
]


@pytest.mark.parametrize("step", NORMS)
def test_norms_take_their_statistics_over_what_is_left(step: Step) -> None:
    groups = find_groups(capture(Written(step).eval(), torch.randn(4, 6)))
    assert groups.trace.statistics and "first" in [group.name for group in groups.free]


@pytest.mark.parametrize("step", OTHERS[:2] + OTHERS[3:])
def test_other_means_are_no_norms(step: Step) -> None:
    groups = find_groups(capture(Written(step).eval(), torch.randn(4, 6)))
    assert not groups.trace.statistics
