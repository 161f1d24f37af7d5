"""Calls that differ from the example in structure, constants or tensors."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.match import match_leaves
from sparsebit.graph.capture.call.signature import is_tensor
from sparsebit.graph.capture.call.structure import flatten
from tests.graph.capture.call.test_structure import Plain


def refusal(example: Any, given_value: Any) -> CaptureError:
    _, tree = flatten(example, "batch", is_tensor)
    with pytest.raises(CaptureError) as error:
        match_leaves(tree, given_value, [])
    return error.value


def test_a_number_where_a_tensor_was() -> None:
    error = refusal({"a": torch.ones(1)}, {"a": 3})
    assert error.message == "argument 'batch_a' was a tensor when the model was captured"
    assert (error.expected, error.got) == ("a tensor", "3") and "pass a tensor" in str(error.hint)


@pytest.mark.parametrize(
    ("given_value", "got"),
    [
        ([torch.ones(1), 4], "4"),
        ([torch.ones(1), torch.ones(2, 3)], "a tensor of shape (2, 3)"),
        ([torch.ones(1), "y" * 99], "..."),
    ],
)
def test_another_constant(given_value: Any, got: str) -> None:
    error = refusal([torch.ones(1), 3], given_value)
    assert error.message == "argument 'batch_1' is fixed in the captured graph"
    assert error.expected == "3" and str(error.got).endswith(got) and len(str(error.got)) <= 80
    assert "capture the model again with this value" in str(error.hint)


@pytest.mark.parametrize(
    ("given_value", "got"),
    [
        ([torch.ones(1)], "list with 0"),
        ((torch.ones(1), 3), "tuple with 0, 1"),
        ({"a": torch.ones(1)}, "dict with a"),
        (torch.ones(2), "a tensor of shape (2,)"),
        (None, "None"),
    ],
)
def test_another_structure(given_value: Any, got: str) -> None:
    error = refusal([torch.ones(1), 3], given_value)
    assert error.message == "argument 'batch' has a different structure from the example"
    assert (error.expected, error.got) == ("list with 0, 1", got)


def test_the_order_of_keys_does_not_matter() -> None:
    _, tree = flatten({"a": torch.zeros(1), "b": torch.ones(1)}, "x", is_tensor)
    found: list[Any] = []
    match_leaves(tree, {"b": torch.ones(1), "a": torch.zeros(1)}, found)
    assert [leaf.item() for leaf in found] == [0, 1]


def test_constants_are_equal_by_identity_or_by_value() -> None:
    nan = float("nan")
    for example, value in ((nan, nan), (Plain(1), Plain(1)), (torch.float16, torch.float16), ("a", "a")):
        _, tree = flatten([torch.ones(1), example], "x", is_tensor)
        match_leaves(tree, [torch.ones(1), value], [])


def test_an_object_that_cannot_say_whether_it_is_equal_is_another_one() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    refusal([torch.ones(1), Odd()], [torch.ones(1), Odd()])


def test_equal_arrays_are_equal_constants() -> None:
    _, tree = flatten([torch.ones(1), numpy.array([1, 2])], "x", is_tensor)
    match_leaves(tree, [torch.ones(1), numpy.array([1, 2])], [])
