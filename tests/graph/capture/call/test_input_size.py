"""What a size says when it fits, and when it does not."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.input_size import InputSize


def test_a_free_size_takes_any_extent() -> None:
    size = InputSize("x", 0, 0, None, "recorded at two sizes")
    assert size.free and str(size) == "x, dimension 0: free: recorded at two sizes"
    size.require(torch.zeros(1, 3)), size.require(torch.zeros(90, 3))


def test_a_fixed_size_names_the_line_and_what_to_do() -> None:
    size = InputSize.fixed("x", 1, 3, "int() of a size makes it a plain number", "net.py:4 in forward")
    size.require(torch.zeros(1, 3))
    assert not size.free and "fixed at 3" in str(size) and "(net.py:4 in forward)" in str(size)
    with pytest.raises(CaptureError) as error:
        size.require(torch.zeros(1, 5))
    assert error.value.where == "net.py:4 in forward" and error.value.expected == "size 3 in dimension 1"
    assert error.value.got == "a tensor of shape (1, 5)" and "dynamic={'x': [1]}" in str(error.value.hint)
    assert "argument 'x' has size 5 in dimension 1" in error.value.message


@pytest.mark.parametrize(("extent", "most", "limits"), [(3, None, "4 or more"), (9, 8, "4 to 8")])
def test_a_range_has_limits(extent: int, most: int | None, limits: str) -> None:
    size = InputSize("x", 0, 4, most, "followed by torch.export")
    size.require(torch.zeros(5))
    with pytest.raises(CaptureError, match=f"size {limits} in dimension 0"):
        size.require(torch.zeros(extent))
