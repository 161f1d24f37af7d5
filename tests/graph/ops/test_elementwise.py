"""Arithmetic: where results are zero, and operands that come in the other order."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.graph.ops.sampling import boolean, one_node, real, sample

X, Y = real(2, 3), real(2, 3)


@pytest.mark.parametrize(
    ("case", "zeros", "expected"),
    [
        (sample(torch.add, X, Y), (True, True), True),
        (sample(torch.add, X, Y), (True, False), False),
        (sample(torch.add, X, 1), (True,), False),
        (sample(torch.add, X, 0), (True,), True),
        (sample(torch.mul, X, Y), (False, True), True),
        (sample(torch.div, X, Y), (True, False), True),
        (sample(torch.div, X, Y), (True, True), False),
        (sample(Tensor.__rtruediv__, X, 1.0), (True,), False),
        (sample(torch.pow, X, 2), (True,), True),
        (sample(torch.pow, X, 0), (True,), False),
        (sample(torch.where, boolean(2, 3), X, Y), (False, True, True), True),
        (sample(torch.masked_fill, X, boolean(2, 3), 0.0), (True, False), True),
        (sample(torch.masked_fill, X, boolean(2, 3), -1.0), (True, False), False),
        (sample(torch.clamp, X, -1, 1), (True,), True),
        (sample(torch.clamp, X, 1, 2), (True,), False),
    ],
)
def test_zero_stays_zero_where_the_operands_allow_it(
    case: Any, zeros: tuple[bool, ...], expected: bool
) -> None:
    assert one_node(case).call.keeps_zero(zeros) is expected


@pytest.mark.parametrize("target", [Tensor.__rsub__, torch.rsub])
def test_reflected_operators_have_their_operands_swapped(target: Any) -> None:
    call = one_node(sample(target, X, 1.0)).call
    assert call.spec.name == "sub" and call.arguments["input"] == 1.0


def test_the_operator_and_its_function_are_one() -> None:
    ways = (operator.sub, torch.sub, Tensor.sub_, torch.subtract)
    assert {one_node(sample(way, X, Y)).call.spec.name for way in ways} == {"sub"}
