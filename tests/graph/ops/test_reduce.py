"""Reductions: overloads that only their arguments tell apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.graph.ops.reduce import OPS
from tests.graph.ops.sampling import integer, one_node, real, sample

X = real(2, 3)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (sample(torch.max, X), "max"),
        (sample(torch.max, X, 1), "max"),
        (sample(torch.max, X, dim=1), "max"),
        (sample(torch.max, X, real(2, 3)), "maximum"),
        (sample(Tensor.min, X, other=real(2, 3)), "minimum"),
    ],
)
def test_a_second_tensor_makes_it_a_comparison(case: Any, name: str) -> None:
    assert one_node(case).call.spec.name == name


def test_a_flag_is_not_a_dimension() -> None:
    call = one_node(sample(Tensor.std, X, False)).call
    assert call.arguments["unbiased"] is False and call.arguments["dim"] is None


@pytest.mark.parametrize("case", [sample(torch.unique, integer(9)), sample(torch.bincount, integer(9))])
def test_rows_that_the_data_count_are_said(case: Any) -> None:
    graph = one_node(case)
    assert graph.call.spec.is_data_sized(graph.node)


def test_only_sums_keep_zero() -> None:
    assert {spec.name for spec in OPS if spec.keeps_zero} == {
        *("sum", "mean", "nansum", "count_nonzero", "norm", "cumsum")
    }
