"""Data movement: overloads, padding, and results whose size the data decide."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.ops.sampling import boolean, integer, one_node, real, sample

X = real(2, 6)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (sample(Tensor.view, X, 3, 4), "reshape"),
        (sample(Tensor.view, X, torch.int64), "view_dtype"),
        (sample(Tensor.reshape, X, (3, 4)), "reshape"),
        (sample(F.unfold, real(1, 2, 4, 4), 2), "im2col"),
        (sample(Tensor.unfold, X, 1, 2, 2), "unfold"),
    ],
)
def test_one_name_of_torch_may_be_two_operators(case: Any, name: str) -> None:
    assert one_node(case).call.spec.name == name


@pytest.mark.parametrize(
    ("case", "moves"),
    [
        (sample(F.pad, X, (1, 1)), True),
        (sample(F.pad, X, (1, 1), value=2.0), False),
        (sample(F.pad, X, (1, 1), "replicate"), True),
        (sample(nn.ConstantPad1d(1, 3.0), X), False),
        (sample(nn.ZeroPad2d(1), real(1, 2, 3)), True),
    ],
)
def test_padding_moves_numbers_unless_it_brings_its_own(case: Any, moves: bool) -> None:
    assert one_node(case).call.moves is moves


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (sample(operator.getitem, X, boolean(2, 6)), True),
        (sample(operator.getitem, X, (slice(None), integer(3, high=6))), False),
        (sample(torch.nonzero, X), True),
        (sample(torch.masked_select, X, boolean(2, 6)), True),
        (sample(torch.repeat_interleave, X, integer(2), 0), True),
        (sample(torch.repeat_interleave, X, repeats=2, dim=0), False),
        (sample(torch.index_select, X, 1, integer(3, high=6)), False),
    ],
)
def test_results_whose_size_follows_from_numbers_are_told(case: Any, expected: bool) -> None:
    graph = one_node(case)
    assert graph.call.spec.is_data_sized(graph.node) is expected
