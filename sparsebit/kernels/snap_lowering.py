"""What inductor makes of the operators of ``snap_operator``: arithmetic that it fuses with what stands around it.

This is the one file that knows inductor, whose names are private to torch. Where one is missing, the operators stay
opaque: the same results, with a pass over memory more for each.

The numbers are those of the kernels: a division rounded as IEEE 754 rounds it, numbers in half precision computed in
float32 and rounded once, sums in float32. An input that inductor has just computed in float32 is first rounded to its
own dtype, as where it is stored: forward and backward then see the same number, whichever of them computes it again.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

USED = True  # False leaves the operators opaque to what is compiled from then on; replaced in benchmarks to compare


def register_where_used() -> bool:
    """Register once inductor is loaded, which this does not do itself; whether the operators have lowerings."""
    return USED and "torch._inductor.graph" in sys.modules and _register()


@functools.cache
def _register() -> bool:
    try:
        from torch._functorch.partitioners import pointwise_ops
        from torch._inductor import lowering
        from torch._inductor.ops_handler import OpsHandler
        from torch._inductor.virtualized import ops

        names = ("expand", "make_pointwise", "mul", "new_empty", "register_lowering", "sum_", "view")
        if any(not hasattr(lowering, name) for name in names):
            return False
    except ImportError:
        return False
    make = _Lowerings(lowering, ops, hasattr(OpsHandler, "div_rn"))
    operators = torch.ops.sparsebit
    lowering.register_lowering(operators.snap.default, type_promotion_kind=None)(make.snap)
    lowering.register_lowering(operators.snap_backward.default, type_promotion_kind=None)(make.snap_backward)
    # Otherwise the partitioner would keep their inputs and results for the backward pass, as those of any operator
    # that nothing is computed together with.
    pointwise_ops().extend([operators.snap, operators.snap_backward])
    return True


class _Lowerings:
    """The operators on inductor's tensors, of which each is a function from an index to a number."""

    def __init__(self, lowering: Any, ops: Any, has_div_rn: bool) -> None:
        self.lowering, self.ops, self.has_div_rn = lowering, ops, has_div_rn

    def snap(
        self, x: Any, scale: Any, zero_point: Any, factor: Any, low: float, high: float, gradient_scale: Any,
        axis: int, magnitude: bool,
    ) -> Any:  # fmt: skip
        """``y``."""
        grid = self._grid(x, scale, low, high, magnitude)
        return self._pointwise(grid.snap, x.get_dtype(), x, *self._spread(x, axis, scale, zero_point))

    def snap_backward(
        self, grad: Any, x: Any, scale: Any, zero_point: Any, factor: Any, low: float, high: float,
        gradient_scale: Any, axis: int, magnitude: bool, learned: bool,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Gradients of x, scale and zero point."""
        grid, spread = self._grid(x, scale, low, high, magnitude), self._spread(x, axis, scale, zero_point)
        to_x = self._pointwise(grid.to_x, x.get_dtype(), x, *spread, grad)
        if not learned:
            return to_x, *(self.lowering.new_empty(scale, [0]) for _ in range(2))
        view, wide, size = self.lowering.view, scale.get_dtype(), list(scale.get_size())
        shape = grid_shape(len(x.get_size()), size, axis)
        if factor is not None:
            gradient_scale = view(factor, [1] * len(shape))
        sums = []
        for slope, end in ((grid.slope_of_scale, grid.end_of_scale), (grid.outside, grid.end_of_zero_point)):
            terms = self._pointwise(slope, wide, x, *spread, grad)
            total = self._pointwise(end, wide, self._sum(terms, shape), view(scale, shape))
            sums.append(view(self.lowering.mul(total, gradient_scale), size))
        return to_x, *sums

    def _grid(self, x: Any, scale: Any, low: float, high: float, magnitude: bool) -> _Grid:
        return _Grid(self.ops, self._divide(x), x.get_dtype(), scale.get_dtype(), low, high, magnitude)

    def _pointwise(self, function: Callable[..., Any], dtype: torch.dtype, *inputs: Any) -> Any:
        return self.lowering.make_pointwise(function, override_return_dtype=dtype)(*inputs)

    def _spread(self, x: Any, axis: int, *tensors: Any) -> list[Any]:
        """One number of a grid for each of ``x``."""
        sizes = x.get_size()
        shapes = [grid_shape(len(sizes), tensor.get_size(), axis) for tensor in tensors]
        views = [self.lowering.view(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        return [self.lowering.expand(view, sizes) for view in views]

    def _sum(self, terms: Any, shape: list[Any]) -> Any:
        """Terms added up to a shape.

        All of a tensor first for each channel: batch norm and layer norm add theirs up so, in the same loop then.
        """
        dims = [dim for dim, size in enumerate(shape) if size == 1]
        if len(dims) == len(shape) > 1:
            channel = 2 if len(shape) == 3 else 1
            dims.remove(channel)
            terms = self.lowering.sum_(terms, dims, keepdims=True)
            dims = [channel]
        return self.lowering.sum_(terms, dims, keepdims=True) if dims else terms

    def _divide(self, x: Any) -> Callable[[Any, Any], Any]:
        """A division that is rounded correctly. Triton's own, for float32, is not."""
        if x.get_device().type != "cuda" or torch.version.hip or x.get_dtype() == torch.float64:
            return self.ops.truediv  # type: ignore[no-any-return]
        if self.has_div_rn:
            return self.ops.div_rn  # type: ignore[no-any-return]
        settings = {"asm": "div.rn.f32 $0, $1, $2;", "constraints": "=f,f,f", "dtype": torch.float32}
        return functools.partial(self.ops.inline_asm_elementwise, **settings)


@dataclass(frozen=True)
class _Grid:
    """The arithmetic for one number of a tensor, of inductor's own operations."""

    ops: Any
    divide: Callable[[Any, Any], Any]
    dtype: torch.dtype  # of the tensor
    wide: torch.dtype  # that is computed in
    low: float
    high: float
    magnitude: bool

    def snap(self, x: Any, scale: Any, zero_point: Any) -> Any:
        """The number on the grid."""
        _, clipped, _ = self._steps(x, scale, zero_point)
        return self._rounded(self.ops.mul(clipped, self._size(scale)))

    def to_x(self, x: Any, scale: Any, zero_point: Any, grad: Any) -> Any:
        """The gradient inside of the grid."""
        _, _, inside = self._steps(x, scale, zero_point)
        return self.ops.where(inside, grad, self.ops.constant(0.0, self.dtype))

    def slope_of_scale(self, x: Any, scale: Any, zero_point: Any, grad: Any) -> Any:
        """What a number adds to the gradient of its scale."""
        ops = self.ops
        v, clipped, inside = self._steps(x, scale, zero_point)
        return ops.mul(self._widened(grad), ops.where(inside, ops.sub(clipped, v), clipped))

    def outside(self, x: Any, scale: Any, zero_point: Any, grad: Any) -> Any:
        """What a number adds to the gradient of its zero point, but for a factor."""
        _, _, inside = self._steps(x, scale, zero_point)
        return self.ops.where(inside, self.ops.constant(0.0, self.wide), self._widened(grad))

    def end_of_scale(self, total: Any, scale: Any) -> Any:
        """The sign that a scale has, for the gradient of its magnitude."""
        if not self.magnitude:
            return total
        negative = self.ops.lt(scale, self.ops.constant(0.0, self.wide))
        return self.ops.where(negative, self.ops.neg(total), total)

    def end_of_zero_point(self, total: Any, scale: Any) -> Any:
        """The factor of the gradient of a zero point."""
        return self.ops.mul(total, self.ops.neg(self._size(scale)))

    def _steps(self, x: Any, scale: Any, zero_point: Any) -> tuple[Any, Any, Any]:
        """The number as a multiple of the scale, that rounded and clipped, and whether clipping changed nothing."""
        ops = self.ops
        v = self.divide(self._widened(self._rounded(x)), self._size(scale))
        rounded = ops.round(v)
        low, high = (ops.sub(ops.constant(end, self.wide), zero_point) for end in (self.low, self.high))
        clipped = ops.minimum(ops.maximum(rounded, low), high)
        return v, clipped, ops.eq(rounded, clipped)

    def _size(self, scale: Any) -> Any:
        return self.ops.abs(scale) if self.magnitude else scale

    def _widened(self, x: Any) -> Any:
        return x if self.dtype == self.wide else self.ops.to_dtype(x, self.wide, src_dtype=self.dtype)

    def _rounded(self, x: Any) -> Any:
        """A number as memory of this dtype holds it."""
        if self.dtype == self.wide:
            return x
        return self.ops.to_dtype(x, self.dtype, src_dtype=self.wide, use_compute_types=False)


def grid_shape(dims: int, size: Sequence[Any], axis: int) -> list[Any]:
    """The shape in which scales of this size broadcast against a tensor with so many dimensions."""
    count = math.prod(size)
    if count == 1:
        return [1] * dims
    if axis < 0:
        return [1] * (dims - len(size)) + list(size)
    return [count if dim == axis else 1 for dim in range(dims)]
