"""Gradients of a learned grid: against the equations, against finite differences, against torch's own kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.numerics.grid import QParams, fake_quantize
from sparsebit.numerics.layout import Layout, spread
from sparsebit.numerics.learned_step import learned_fake_quantize

ROWS = [
    Layout(),
    Layout(kind="channel"),
    Layout(kind="channel", axis=1),
    Layout(kind="group", group_size=2),
    Layout(kind="group", group_size=4),  # the last one is shorter
]


def grid(count: int, *, asymmetric: bool = False, dtype: torch.dtype = torch.float64) -> QParams:
    scale = torch.linspace(0.2, 0.5, count, dtype=dtype).requires_grad_()
    zero_point = (torch.arange(count) % 5 if asymmetric else torch.zeros(count)).to(dtype).requires_grad_()
    return QParams(scale, zero_point, *((0, 7) if asymmetric else (-4, 3)))


def count_of(x: Tensor, rows: Layout) -> int:
    from sparsebit.numerics.layout import row_count

    return row_count(x.shape, rows)


def gradients(y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return torch.autograd.grad((y * weights).sum(), inputs)


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{rows.kind}{rows.axis}{rows.group_size or ''}")
@pytest.mark.parametrize("asymmetric", [False, True])
def test_values_and_gradients_are_those_of_the_equations(rows: Layout, asymmetric: bool) -> None:
    x = torch.randn(6, 10, 3, dtype=torch.float64).requires_grad_()
    qparams = grid(count_of(x, rows), asymmetric=asymmetric)
    got = learned_fake_quantize(x, qparams, rows, 0.25)
    wide = [spread(v, x.shape, rows).expand_as(x) for v in (qparams.scale, qparams.zero_point)]
    expected = fake_quantize(x, qparams._replace(scale=wide[0], zero_point=wide[1]))
    assert torch.equal(got, expected.detach())
    to_x, to_scale, to_zero_point = gradients(got, x, qparams.scale, qparams.zero_point)
    # fake_quantize reaches the same gradients through a chain of plain operators.
    for own, other, factor in zip(
        (to_x, to_scale, to_zero_point),
        gradients(expected, x, qparams.scale, qparams.zero_point),
        (1.0, 0.25, 0.25),
        strict=True,
    ):
        torch.testing.assert_close(own, other * factor)


def native(x: Tensor, qparams: QParams, rows: Layout, factor: float) -> Tensor:
    function: Callable[..., Tensor]
    if rows.kind == "tensor":
        function = torch._fake_quantize_learnable_per_tensor_affine
        return function(x, qparams.scale, qparams.zero_point, qparams.qmin, qparams.qmax, factor)
    function = torch._fake_quantize_learnable_per_channel_affine
    return function(x, qparams.scale, qparams.zero_point, rows.axis, qparams.qmin, qparams.qmax, factor)


@pytest.mark.parametrize("rows", ROWS[:3], ids=lambda rows: f"{rows.kind}{rows.axis}")
@pytest.mark.parametrize("asymmetric", [False, True])
def test_torch_has_the_same_gradients(rows: Layout, asymmetric: bool) -> None:
    x = torch.randn(6, 10, 5).requires_grad_()
    qparams = grid(count_of(x, rows), asymmetric=asymmetric, dtype=torch.float32)
    given_ = (x, qparams.scale, qparams.zero_point)
    own = learned_fake_quantize(x, qparams, rows, 0.1)
    other = native(x, qparams, rows, 0.1)
    torch.testing.assert_close(own, other)
    for a, b in zip(gradients(own, *given_), gradients(other, *given_), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 10_000), st.integers(2, 8), st.booleans())
def test_finite_differences_where_there_is_no_rounding(seed: int, bits: int, symmetric: bool) -> None:
    """Outside the range the value is scale * (bound - zero point): smooth in both, and flat in x."""
    generator = torch.Generator().manual_seed(seed)
    qmin, qmax = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    x = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    x = (x.sign() * (2**bits + x.abs())).requires_grad_()  # all of it is clipped
    scale = torch.tensor([0.5], dtype=torch.float64).requires_grad_()
    zero_point = torch.tensor([0.0 if symmetric else 1.0], dtype=torch.float64).requires_grad_()

    def function(*values: Tensor) -> Tensor:
        return learned_fake_quantize(values[0], QParams(values[1], values[2], qmin, qmax), Layout(), 1.0)

    assert torch.autograd.gradcheck(function, (x, scale, zero_point))


@given(st.integers(0, 10_000))
def test_inside_the_step_follows_the_residue(seed: int) -> None:
    """d/ds = round(v) - v: what a finite difference gives for s * v_round with the code held, plus straight through."""
    x = (torch.rand(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5) * 3
    scale = torch.tensor([0.4], dtype=torch.float64).requires_grad_()
    y = learned_fake_quantize(x, QParams(scale, torch.zeros(1), -8, 7), Layout(), 1.0)
    (slope,) = torch.autograd.grad(y.sum(), scale)
    v = x / 0.4
    torch.testing.assert_close(slope, (v.round() - v).sum()[None])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(64, 8).to(dtype).requires_grad_()
    qparams = grid(8, dtype=torch.float32)
    rows = Layout(kind="channel", axis=1)
    y = learned_fake_quantize(x, qparams, rows, 1.0)
    reference = learned_fake_quantize(x.float(), qparams, rows, 1.0)
    assert y.dtype == dtype and torch.equal(y, reference.to(dtype))
    y.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype
    assert qparams.scale.grad is not None and qparams.scale.grad.dtype == torch.float32


def test_only_what_is_asked_for_is_computed() -> None:
    x = torch.randn(5)
    scale = torch.ones(1).requires_grad_()
    y = learned_fake_quantize(x, QParams(scale, torch.zeros(1), -2, 1), Layout(), torch.tensor([0.5]))
    y.sum().backward()
    assert scale.grad is not None and x.grad is None
    steps = x.round()
    inside = (steps >= -2) & (steps <= 1)
    expected = torch.where(inside, steps - x, steps.clamp(-2, 1)).sum() * 0.5
    torch.testing.assert_close(scale.grad, expected[None])


def test_other_memory_layouts() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    scale = torch.full((1,), 0.3).requires_grad_()
    y = learned_fake_quantize(x, QParams(scale, torch.zeros(1), -2, 1), Layout(), 1.0)
    own = gradients(y, x, scale)
    z = learned_fake_quantize(x.contiguous(), QParams(scale, torch.zeros(1), -2, 1), Layout(), 1.0)
    for a, b in zip(own, gradients(z, x, scale), strict=True):
        torch.testing.assert_close(a, b)
