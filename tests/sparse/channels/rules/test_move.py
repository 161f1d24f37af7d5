"""Operators that take the size of another tensor: pruned models still run, and equal the masked one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit import SparseModel

HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


class Pair(nn.Module):
    """Two branches, of which the second gives the size of the first."""

    def __init__(self, like: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.like = like
        self.a, self.b, self.c = nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return self.c(self.like(a, b)) + self.c(b)


@pytest.mark.parametrize(
    "like",
    [Tensor.expand_as, Tensor.view_as, Tensor.reshape_as, lambda a, b: a.flatten(1).view_as(b)],
    ids=["expand_as", "view_as", "reshape_as", "flat view_as"],
)
def test_what_takes_the_size_of_another_tensor_shrinks_with_it(
    like: Callable[[Tensor, Tensor], Tensor],
) -> None:
    net = Pair(like).eval()
    smodel = SparseModel(net, HALF, example_inputs=(torch.randn(2, 8, 5),))
    smodel.calc_params()
    small, x = smodel.shrink(), torch.randn(3, 8, 5)
    assert small.get_parameter("a.weight").shape[0] == small.get_parameter("b.weight").shape[0] == 4
    torch.testing.assert_close(small(x), smodel(x))


@pytest.mark.parametrize("like", [Tensor.expand_as, Tensor.view_as], ids=["expand_as", "view_as"])
def test_the_size_of_an_input_of_the_model_is_kept(like: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 1), nn.Conv1d(8, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(self.b(like(self.a(x), x))))

    smodel = SparseModel(Alone().eval(), HALF, example_inputs=(torch.randn(2, 8, 5),))
    smodel.calc_params()
    small = smodel.shrink()
    assert small.get_parameter("a.weight").shape == (8, 8, 1)
    assert small.get_parameter("b.weight").shape == (4, 8, 1)
    assert small(torch.randn(3, 8, 5)).shape == (3, 8, 5)
