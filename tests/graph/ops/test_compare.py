"""Comparisons and logic: results without fractions, and Python operators on bits."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from sparsebit.graph.ops.compare import OPS
from sparsebit.graph.ops.lookup import find_function

TWO = torch.tensor([3, 5, 8])


@pytest.mark.parametrize(
    "spec", [spec for spec in OPS if spec.name not in ("isin", "allclose", "equal")], ids=lambda s: s.name
)
def test_results_are_truth_values_or_bits(spec: Any) -> None:
    function = getattr(torch, spec.name)
    result = function(TWO, TWO) if len(spec.activations) == 2 else function(TWO)
    assert not result.is_floating_point() and spec.elementwise


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (operator.and_, "bitwise_and"),
        (operator.ior, "bitwise_or"),
        (torch.Tensor.__rxor__, "bitwise_xor"),
        (operator.lshift, "bitwise_left_shift"),
        (operator.irshift, "bitwise_right_shift"),
        (operator.invert, "bitwise_not"),
    ],
)
def test_operators_on_bits_are_found(function: object, name: str) -> None:
    found = find_function(function)
    assert found is not None and found.spec.name == name


def test_what_compares_whole_tensors_is_not_elementwise() -> None:
    assert {spec.name for spec in OPS if not spec.elementwise} == {"isin", "allclose", "equal"}
