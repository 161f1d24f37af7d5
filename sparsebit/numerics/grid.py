"""The arithmetic of quantization: ranges to grids, numbers to codes and back. Pure functions of tensors.

An integer grid maps ``q = clamp(round(x / scale) + zero_point, qmin, qmax)`` and back ``(q - zero_point) * scale``,
where round is half to even and comes *before* the zero point is added: exactly ONNX QuantizeLinear and
DequantizeLinear. Two shortcuts that look harmless are not taken, because each moves some ties to another code:
multiplying by ``1 / scale`` (as ``torch.fake_quantize_*`` does) and rounding after adding an odd zero point.

Inputs in half precision are computed in float32 and returned in their own dtype; float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.numerics.layout import Layout, align

Dtype = Literal["int", "fp8_e4m3", "fp8_e5m2"]

FLOAT8: dict[Dtype, torch.dtype] = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}

# The scale of a row that was zero throughout. Any scale represents zero exactly; this one also survives float16
# and keeps bias / (input scale * weight scale) inside int32, so a dead channel still delivers its bias.
SCALE_OF_ZEROS = 2.0**-20


class QParams(NamedTuple):
    """One grid: ``q = clamp(round(x / scale) + zero_point, qmin, qmax)``.

    For the 8-bit floats ``dtype`` names the format, ``qmin`` and ``qmax`` are its largest finite values and the
    zero point is 0.
    """

    scale: Tensor  # [C], [1] for one per tensor; with more than one dimension: broadcasts against the tensor
    zero_point: Tensor  # same shape as scale, integer-valued
    qmin: int
    qmax: int
    dtype: Dtype = "int"


class GridSpec(NamedTuple):
    """The kind of grid that was asked for, before any data was seen."""

    bits: int = 8
    symmetric: bool = True
    dtype: Dtype = "int"

    def qparams(self, lo: Tensor, hi: Tensor) -> QParams:
        """The grid of this kind that covers a range, as ``qparams_from_range``."""
        return qparams_from_range(lo, hi, bits=self.bits, symmetric=self.symmetric, dtype=self.dtype)


def integer_range(bits: int, symmetric: bool) -> tuple[int, int]:
    """The smallest and largest code: two's complement when symmetric, else counted from 0.

    Example:
        >>> integer_range(8, True), integer_range(4, False)
        ((-128, 127), (0, 15))
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 16:
        raise ConfigError("cannot make a grid of this width", expected="bits from 2 to 16", got=repr(bits))
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)


def qparams_from_range(
    lo: Tensor, hi: Tensor, *, bits: int = 8, symmetric: bool = True, dtype: Dtype = "int"
) -> QParams:
    """Choose the grid that covers an observed range.

    The range is first widened to contain zero, so that padding and ReLU zeros stay exact. A symmetric grid has
    ``scale = absmax / qmax``. ``lo`` and ``hi`` have shape [C], or [1] for one range per tensor; so do the results.
    The 8-bit floats take ``scale = absmax / 448`` (e4m3) or ``absmax / 57344`` (e5m2) and ignore ``bits``.

    Example:
        >>> qparams_from_range(torch.tensor([-1.0]), torch.tensor([3.0]), bits=2, symmetric=False).zero_point
        tensor([1.])
    """
    if dtype in FLOAT8:
        qmax = int(torch.finfo(FLOAT8[dtype]).max)
        qmin, symmetric = -qmax, True
    else:
        qmin, qmax = integer_range(bits, symmetric)
    wide = _compute_dtype(lo.dtype)
    lo, hi = lo.to(wide).clamp(max=0), hi.to(wide).clamp(min=0)
    # Divided one by one, because hi - lo may overflow where both ends are finite.
    scale = torch.maximum(-lo, hi) / qmax if symmetric else hi / qmax - lo / qmax
    scale = torch.where(scale > 0, scale.clamp(min=torch.finfo(wide).tiny), SCALE_OF_ZEROS)
    # 0 - lo, because -lo would be -0.0 where nothing is below zero.
    zero_point = torch.zeros_like(scale) if symmetric else ((0 - lo) / scale).round().clamp(qmin, qmax)
    return QParams(scale, zero_point, qmin, qmax, dtype)


def code_dtype(qparams: QParams) -> torch.dtype:
    """The smallest torch dtype that holds the codes of a grid.

    Example:
        >>> code_dtype(GridSpec(bits=4, symmetric=False).qparams(torch.zeros(1), torch.ones(1)))
        torch.uint8
    """
    if qparams.dtype in FLOAT8:
        return FLOAT8[qparams.dtype]
    # torch has uint16, but next to no operator that works on it.
    for dtype in (torch.uint8, torch.int8, torch.int16):
        if torch.iinfo(dtype).min <= qparams.qmin and qparams.qmax <= torch.iinfo(dtype).max:
            return dtype
    return torch.int32


def quantize(
    x: Tensor, qparams: QParams, *, axis: int | None = None, group_size: int | None = None
) -> Tensor:
    """The codes of ``x``, in ``code_dtype(qparams)``. Arguments as for ``fake_quantize``.

    Example:
        >>> quantize(torch.tensor([-0.5, 0.5, 1.5, 9.0]), QParams(torch.ones(1), torch.zeros(1), -2, 1))
        tensor([0, 0, 1, 1], dtype=torch.int8)
    """
    view, scale, zero_point = _aligned(x, qparams, axis, group_size)
    codes = torch.div(view, scale)
    if qparams.dtype == "int":
        codes = codes.round_().add_(zero_point)
    return codes.clamp_(qparams.qmin, qparams.qmax).to(code_dtype(qparams)).reshape(x.shape)


def dequantize(
    codes: Tensor,
    qparams: QParams,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The numbers that codes stand for, ``(q - zero_point) * scale``, in ``dtype``.

    Example:
        >>> qparams = QParams(torch.tensor([0.5]), torch.tensor([3.0]), 0, 255)
        >>> dequantize(torch.tensor([0, 255], dtype=torch.uint8), qparams)
        tensor([ -1.5000, 126.0000])
    """
    view, scale, zero_point = _aligned(codes.to(_compute_dtype(dtype)), qparams, axis, group_size)
    return view.sub(zero_point).mul_(scale).to(dtype).reshape(codes.shape)


def fake_quantize(
    x: Tensor, qparams: QParams, *, axis: int | None = None, group_size: int | None = None
) -> Tensor:
    """Snap ``x`` to the grid and back; gradients pass straight through inside the range and stop outside.

    A scale of shape [C] is laid along ``axis`` of ``x``, or with ``group_size`` along the groups of input channels of
    each output channel (see ``granularity.Layout``). A scale with more dimensions must broadcast against ``x`` by
    itself: that is how ``granularity.spread`` serves every other case, one scale per token among them.

    The gradient with respect to scale and zero point is computed only if they ask for it: it is the one of
    learned step size quantization (Esser et al. 2020, eq. 3; LSQ+, Bhalgat et al. 2020, eq. 4-5).

    Example:
        >>> x = torch.tensor([-9.0, 0.4, 0.6], requires_grad=True)
        >>> y = fake_quantize(x, QParams(torch.ones(1), torch.zeros(1), -2, 1))
        >>> y.sum().backward()
        >>> y.detach(), x.grad
        (tensor([-2.,  0.,  1.]), tensor([0., 1., 1.]))
    """
    view, scale, zero_point = _aligned(x, qparams, axis, group_size)
    if torch.is_grad_enabled():
        if scale.requires_grad or zero_point.requires_grad:
            return _differentiable(view, scale, zero_point, qparams).to(x.dtype).reshape(x.shape)
        if view.requires_grad:
            return _straight_through(view, scale, zero_point, qparams).reshape(x.shape)
    return _snap(view, scale, zero_point, qparams).to(x.dtype).reshape(x.shape)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _aligned(
    x: Tensor, qparams: QParams, axis: int | None, group_size: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """A view of ``x``, and scale and zero point that broadcast against it and make the result the compute dtype.

    They must be on the device of ``x`` and have at least one dimension. One that is a number to torch would be weaker
    than half precision in type promotion, and CUDA would multiply by its reciprocal instead of dividing.
    """
    wide = _compute_dtype(x.dtype)
    scale, zero_point = qparams.scale.to(x.device, wide), qparams.zero_point.to(x.device, wide)
    if scale.dim() > 1 and scale.numel() > 1:
        return x, scale, zero_point
    if scale.numel() == 1:
        return x, scale.reshape(1), zero_point.reshape(1)
    if axis is None and group_size is None:
        raise SparsebitError(
            "several scales, and no axis to lay them along",
            got=f"{scale.numel()} scales for a tensor of shape {tuple(x.shape)}",
            hint="pass axis=, or shape the scale to broadcast against the tensor",
        )
    rows = Layout(kind="channel" if group_size is None else "group", axis=axis or 0, group_size=group_size)
    view, (scale, zero_point) = align(x, rows, scale, zero_point)
    return view, scale, zero_point


def _snap(x: Tensor, scale: Tensor, zero_point: Tensor, qparams: QParams) -> Tensor:
    """``x`` on the grid, in the compute dtype. The first operation makes the buffer, the others reuse it."""
    # Clamping round(x / scale) to [qmin - zero_point, qmax - zero_point] equals adding the zero point, clamping
    # and subtracting it again, with two passes over memory less. Both bounds in one call is a slower kernel.
    steps = torch.div(x, scale)
    if qparams.dtype == "int":
        steps = steps.round_()
    steps = steps.clamp_(min=qparams.qmin - zero_point).clamp_(max=qparams.qmax - zero_point)
    return _representable(steps, qparams).mul_(scale)


def _representable(steps: Tensor, qparams: QParams) -> Tensor:
    """Multiples of the scale, rounded to what the format can hold; integers are already."""
    return steps if qparams.dtype == "int" else steps.to(FLOAT8[qparams.dtype]).to(steps.dtype)


class _StraightThrough(torch.autograd.Function):
    """``_snap`` whose gradient is one inside the range and zero outside; keeps one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, qparams: QParams) -> Tensor:
        steps = torch.div(x, scale)
        if qparams.dtype == "int":
            steps = steps.round_()
        clipped = steps.clamp(min=qparams.qmin - zero_point).clamp_(max=qparams.qmax - zero_point)
        # Compared in place in floating point and then cast, because a comparison that writes bool is slow.
        ctx.save_for_backward(steps.eq_(clipped).to(torch.bool))
        return _representable(clipped, qparams).mul_(scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return inside.view(torch.uint8).to(grads[0].dtype).mul_(grads[0]), None, None, None


_straight_through = cast("Callable[..., Tensor]", _StraightThrough.apply)


class _Replace(torch.autograd.Function):
    """Other values in the forward pass, the gradient of the first ones in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


_replace = cast("Callable[[Tensor, Tensor], Tensor]", _Replace.apply)


def _differentiable(x: Tensor, scale: Tensor, zero_point: Tensor, qparams: QParams) -> Tensor:
    """The same numbers from operations that also carry gradients to scale and zero point."""
    steps = x / scale
    if qparams.dtype == "int":
        steps = _replace(steps, steps.detach().round())
    steps = (steps + zero_point).clamp(qparams.qmin, qparams.qmax) - zero_point
    if qparams.dtype != "int":
        steps = _replace(steps, _representable(steps.detach(), qparams))
    return steps * scale
