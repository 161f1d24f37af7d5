"""Products with a packed weight: by a kernel if torch or sparsebit has one, else with the unpacked weight.

The kernels are for half precision: on a CPU torch's own for 4-bit weights in bfloat16 (2 to 4 times faster than float32
at one vector, as exact as bfloat16), on a GPU those of ``sparsebit.kernels``. In float32
torch's kernel is slower than a product of floats, so the weight is unpacked for each product: the plain reference.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.kernels.packed_matmul import covers, multiply_packed
from sparsebit.numerics.packed import PackedTensor

CPU_VECTORS = 64  # as many vectors at once as the kernel is faster for
_GROUPS = (256, 128, 64, 32)


class CpuWeight(NamedTuple):
    """A weight of at most 4 bits in the order of torch's CPU kernel: ``(value - 8) * scale + offset``."""

    values: Tensor
    scales_and_offsets: Tensor  # bfloat16 [groups, out, 2]
    group_size: int

    @classmethod
    def of(cls, held: PackedTensor) -> CpuWeight | None:
        """The weight; None if the kernel does not support the grid."""
        grid, (rows, columns) = held.grid, held.shape
        size = grid.layout.group_size or columns
        group = next((one for one in _GROUPS if size % one == 0 and columns % one == 0), None)
        fits = grid.code.is_integer and grid.code.bits <= 4 and grid.order is None
        if (
            not fits
            or group is None
            or rows % 16
            or not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")
        ):
            return None
        scale, point = (
            one.float().reshape(rows, -1).repeat_interleave(size // group, 1)
            for one in (grid.scale, grid.zero_point)
        )
        signed = grid.code.symmetric
        offset = torch.zeros_like(scale) if signed else (8 - point) * scale
        values = held.codes().to(torch.int32) + (8 if signed else 0)
        both = torch.stack([scale.T, offset.T], -1).contiguous().bfloat16()
        return cls(torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1), both, group)

    def multiply(self, x: Tensor) -> Tensor:
        """``x @ weight.T`` for x [..., in] in bfloat16."""
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        made = torch.ops.aten._weight_int4pack_mm_for_cpu(
            flat, self.values, self.group_size, self.scales_and_offsets
        )
        return made if x.dim() == 2 else made.reshape(*x.shape[:-1], -1)  # type: ignore[no-any-return]

    def covers(self, x: Tensor) -> bool:
        """Whether the kernel can multiply these vectors."""
        return True


class GpuWeight(NamedTuple):
    """A weight for the kernels of ``sparsebit.kernels``: packed values, with scales and zero points [groups, out]."""

    packed: Tensor
    scale: Tensor
    zero_point: Tensor | None
    width: int
    low: int

    @classmethod
    def of(cls, held: PackedTensor) -> GpuWeight | None:
        """The weight; None if the kernels do not support the grid."""
        grid, rows = held.grid, held.shape[0]
        if not grid.code.is_integer or grid.order is not None:
            return None
        scale, point = (one.reshape(rows, -1).T.contiguous() for one in (grid.scale, grid.zero_point))
        points = None if grid.code.symmetric else point.to(torch.int16)
        return cls(held.bits, scale, points, grid.code.bits, grid.code.low)

    def covers(self, x: Tensor) -> bool:
        """Whether the kernels can multiply these vectors."""
        return covers(x, self.packed, self.scale, self.width)

    def multiply(self, x: Tensor) -> Tensor:
        """``x @ weight.T`` for x [..., in] in half precision."""
        return multiply_packed(x, self.packed, self.scale, self.zero_point, self.width, self.low)


KernelWeight = CpuWeight | GpuWeight


def kernel_for(x: Tensor) -> type[CpuWeight] | type[GpuWeight] | None:
    """The weight whose kernel multiplies these vectors fastest; None if the unpacked weight is faster."""
    if x.is_cuda:
        return GpuWeight if x.dtype in (torch.float16, torch.bfloat16) else None
    few = 0 < math.prod(x.shape[:-1]) <= CPU_VECTORS
    return CpuWeight if x.device.type == "cpu" and x.dtype == torch.bfloat16 and few else None


def multiply(x: Tensor, held: PackedTensor, kernel: KernelWeight | None) -> Tensor:
    """``x @ weight.T``, by a kernel if there is one."""
    if kernel is not None and kernel.covers(x):
        return kernel.multiply(x)
    return F.linear(x, held.numbers(x.dtype))


def multiply_with_gradient(x: Tensor, held: PackedTensor, kernel: KernelWeight | None) -> Tensor:
    """``multiply``, through which gradients reach x."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return multiply(x, held, kernel)
    flat = x.reshape(-1, x.shape[-1])  # so that the result is not a view, which could not be changed in place
    found: Tensor = _Product.apply(flat, held, kernel)  # type: ignore[no-untyped-call]
    return found if x.dim() == 2 else found.reshape(*x.shape[:-1], -1)


class _Product(torch.autograd.Function):
    """The product with a gradient for x; the weight is unpacked again for it instead of being kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, held: PackedTensor, kernel: KernelWeight | None) -> Tensor:
        """``x @ weight.T``."""
        ctx.held = held
        return multiply(x, held, kernel)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """``gradient @ weight``."""
        return gradients[0] @ ctx.held.numbers(gradients[0].dtype), None, None
