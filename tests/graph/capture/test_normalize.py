"""One spelling for one meaning, and the meaning stays: the canonical call gives the numbers of the original call."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.graph.capture.normalize import (
    canonical_call,
    functional_twin,
    is_tensor_method,
    name_of,
)
from tests.graph.capture.spelled_calls import CALLS, Call, T, assert_equal


def named(call: Call) -> str:
    return f"{'Tensor.' if is_tensor_method(call[0]) else ''}{name_of(call[0])}"


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_the_canonical_call_gives_the_same_numbers(call: Call) -> None:
    function, args, kwargs = call
    target, new_args, new_kwargs = canonical_call(function, args, kwargs)
    assert_equal(target(*new_args, **new_kwargs), function(*args, **kwargs))


def test_a_canonical_call_is_canonical_already() -> None:
    for call in CALLS:
        once = canonical_call(*call)
        again = canonical_call(*once)
        assert again[0] is once[0] and again[2].keys() == once[2].keys(), named(call)
        assert repr(again[1]) == repr(once[1]), named(call)


@pytest.mark.parametrize(
    ("target", "forward", "reflected"),
    [
        (operator.add, [torch.add, T.add, T.__add__], [T.__radd__]),
        (operator.sub, [torch.sub, torch.subtract, T.__sub__], [T.__rsub__, torch.rsub]),
        (operator.truediv, [torch.div, T.true_divide, T.__truediv__], [T.__rtruediv__, T.__rdiv__]),
        (operator.pow, [torch.pow, T.pow, T.__pow__], [T.__rpow__]),
        (operator.matmul, [torch.matmul, T.__matmul__], [T.__rmatmul__]),
        (operator.and_, [torch.bitwise_and, T.__and__], [T.__rand__]),
        (operator.getitem, [T.__getitem__], []),
    ],
)
def test_one_meaning_has_one_target(target: Any, forward: list[Any], reflected: list[Any]) -> None:
    for function in forward:
        assert canonical_call(function, ("x", "y"), {}) == (target, ("x", "y"), {})
    for function in reflected:
        assert canonical_call(function, ("y", "x"), {}) == (target, ("x", "y"), {})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((T.transpose, ("x", 1, 2), {}), (torch.transpose, ("x", 1, 2), {})),
        ((T.softmax, ("x", -1), {}), (torch.softmax, ("x", -1), {})),
        ((T.reshape, ("x", 2, -1), {}), (torch.reshape, ("x", (2, -1)), {})),
        ((T.permute, ("x", 0, 2, 1), {}), (torch.permute, ("x", (0, 2, 1)), {})),
        ((T.view, ("x", 2, -1), {}), (T.view, ("x", (2, -1)), {})),
        ((T.expand, ("x", [2, -1]), {}), (T.expand, ("x", (2, -1)), {})),
        ((T.masked_fill, ("x", "m", 0.0), {}), (torch.masked_fill, ("x", "m", 0.0), {})),
        ((T.where, ("x", "c", "y"), {}), (torch.where, ("c", "x", "y"), {})),
        ((T.unsqueeze, ("x", 0), {}), (torch.unsqueeze, ("x", 0), {})),
        ((T.__neg__, ("x",), {}), (operator.neg, ("x",), {})),
        ((T.__invert__, ("x",), {}), (operator.invert, ("x",), {})),
        ((torch.clip, ("x", 0, 1), {}), (torch.clamp, ("x", 0, 1), {})),
        ((T.swapaxes, ("x", 0, 1), {}), (torch.transpose, ("x", 0, 1), {})),
        ((torch.add, ("x", "y"), {"alpha": 2}), (torch.add, ("x", "y"), {"alpha": 2})),
        ((T.add, ("x", "y"), {"alpha": 2}), (torch.add, ("x", "y"), {"alpha": 2})),
        ((torch.zeros, (2, "n"), {"dtype": torch.int8}), (torch.zeros, ((2, "n"),), {"dtype": torch.int8})),
        ((F.gelu, ("x",), {}), (F.gelu, ("x",), {})),
    ],
)
def test_the_documented_spellings(call: Call, expected: Call) -> None:
    assert canonical_call(*call) == expected


def test_a_function_of_somebody_else_is_left_alone() -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    assert canonical_call(add, ("x", "y"), {})[0] is add
    odd = Unhashable()
    assert canonical_call(odd, (), {})[0] is odd


@given(
    st.sampled_from(["add", "sub", "mul", "div", "pow", "remainder", "floor_divide", "matmul"]),
    st.integers(0, 9),
)
def test_operands_by_name_are_put_in_order(name: str, seed: int) -> None:
    x, y = (torch.rand((3, 3), generator=torch.Generator().manual_seed(seed)) + part for part in (0.5, 1.5))
    function, second = getattr(torch, name), "exponent" if name == "pow" else "other"
    for args, kwargs in (((x, y), {}), ((x,), {second: y}), ((), {"input": x, second: y})):
        target, new_args, new_kwargs = canonical_call(function, args, kwargs)
        assert new_kwargs == {} and torch.equal(target(*new_args), function(x, y))


def test_names_and_owners() -> None:
    assert name_of(T.add) == "add" and name_of(T.__rsub__) == "__rsub__" and name_of(object()) == ""
    assert name_of(T.split) == "split" and name_of(T.__pow__) == "__pow__"
    assert is_tensor_method(T.add) and is_tensor_method(T.split) and is_tensor_method(T.__rpow__)
    assert not is_tensor_method(torch.add) and not is_tensor_method(len) and not is_tensor_method(F.relu)


@pytest.mark.parametrize("name", ["add_", "relu_", "mul_", "masked_fill_", "clamp_", "transpose_"])
def test_the_twin_of_a_write_is_the_method_without_it(name: str) -> None:
    assert functional_twin(name) is getattr(T, name.rstrip("_"))


@pytest.mark.parametrize("name", ["uniform_", "add", "__setitem__", "__iadd__", "zero_"])
def test_other_names_have_no_twin(name: str) -> None:
    twin = functional_twin(name)
    assert twin is None or name == "__iadd__"


# -- where the spellings of torch differ -----------------------------------------------------------


def test_polygamma() -> None:
    x = torch.rand(3) + 1
    target, args, kwargs = canonical_call(T.polygamma, (x, 1), {})
    assert torch.equal(target(*args, **kwargs), x.polygamma(1))


def test_split_by_keyword() -> None:
    x = torch.rand(6)
    target, args, kwargs = canonical_call(T.split, (x,), {"split_size": 2})
    assert_equal(target(*args, **kwargs), x.split(split_size=2))
