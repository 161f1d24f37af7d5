"""Functions that captured graphs call: equal to the writes in place they stand for."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx

from sparsebit.errors import CaptureError
from sparsebit.graph.functional import AutogradCall, check_branch, overwrite, set_item

FLOATS = st.floats(-10, 10, width=32)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])


@st.composite
def indices(draw: st.DrawFn) -> Any:
    """An index into a tensor of shape [4, 5], of any kind that Python code writes through."""
    return draw(
        st.sampled_from(
            [
                0,
                -1,
                (1, 2),
                slice(1, 3),
                (slice(None), 3),
                (slice(None, None, 2), slice(1, None)),
                (..., 0),
                (None, 2),
                [0, 2],
                (slice(None), [1, 1, 4]),
                torch.tensor([3, 0]),
                (torch.tensor([0, 1]), torch.tensor([2, 4])),
                torch.arange(20).reshape(4, 5) % 3 == 0,
                torch.tensor([True, False, True, False]),
            ]
        )
    )


@given(indices(), st.one_of(FLOATS, st.just("tensor")), DTYPES)
def test_set_item_is_assignment_on_a_copy(index: Any, value: Any, dtype: torch.dtype) -> None:
    before = (torch.arange(20.0).reshape(4, 5) - 7).to(dtype)
    kept, written = before.clone(), before.clone()
    item = torch.ones_like(written[index]) if value == "tensor" else value
    written[index] = item
    result = set_item(before, index, item)
    assert torch.equal(result, written) and result.dtype == written.dtype
    assert torch.equal(before, kept), "the tensor itself is left alone"


@given(st.sampled_from([(3, 4), (1, 4), (4,), (3, 1), (1,), ()]), DTYPES, DTYPES, st.booleans())
def test_overwrite_is_copy_on_a_new_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, source_dtype: torch.dtype, transposed: bool
) -> None:
    target = torch.zeros(4, 3).t().to(dtype) if transposed else torch.zeros(3, 4, dtype=dtype)
    source = (torch.randn(shape) * 3).to(source_dtype)
    result, written = overwrite(target, source), target.clone().copy_(source)
    assert torch.equal(result, written) and result.dtype == written.dtype and result.shape == written.shape
    assert result.data_ptr() not in (target.data_ptr(), source.data_ptr()), (
        "a later write must not reach them"
    )
    result.fill_(5)
    assert not target.any()


@pytest.mark.parametrize("source_shape", [(3,), (1,), ()])
def test_overwrite_gives_its_gradient_to_the_source(source_shape: tuple[int, ...]) -> None:
    target, source = torch.zeros(2, 3, requires_grad=True), torch.randn(source_shape, requires_grad=True)
    overwrite(target * 2, source).sum().backward()
    assert source.grad is not None and torch.equal(source.grad.sum(), torch.tensor(6.0))
    assert target.grad is None or not target.grad.any()


def test_set_item_gives_gradients_to_both() -> None:
    tensor, value = torch.ones(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    set_item(tensor, 1, value).sum().backward()
    assert tensor.grad is not None and tensor.grad.tolist() == [1, 0, 1]
    assert value.grad is not None and value.grad.item() == 1


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 7 * grad * x * ctx.scale, None  # not the true derivative: shows whose backward ran


@pytest.mark.parametrize("again", [lambda c: c, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_an_autograd_call_keeps_the_functions_own_backward(again: Callable[[Any], Any]) -> None:
    call = again(AutogradCall(_Square))
    x = torch.tensor([2.0], requires_grad=True)
    y = call(x, 0.5)
    y.backward()
    assert y.item() == 2 and x.grad is not None and x.grad.item() == 7
    assert (
        call.__name__ == "_Square"
        and call == AutogradCall(_Square)
        and hash(call) == hash(AutogradCall(_Square))
    )


def test_a_branch_that_goes_the_recorded_way_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_branch(True, True, "net.py:3")
        check_branch(False, False, "net.py:3")


@pytest.mark.parametrize(("taken", "recorded"), [(True, False), (False, True)])
def test_a_branch_that_goes_another_way_names_its_place(taken: bool, recorded: bool) -> None:
    text = rf"was {recorded} when the model was captured and is {taken} for this input\n +where: net\.py:3 in forward"
    with pytest.raises(CaptureError, match=text):
        check_branch(taken, recorded, "net.py:3 in forward")


def test_dead_code_elimination_keeps_branch_checks() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    check = graph.call_function(check_branch, (True, True, "net.py:3"))
    graph.output((x,))
    graph.eliminate_dead_code()
    assert check in graph.nodes
