"""One grid: the numbers that quantized values (codes) represent, and the conversion between them.

For integers ``q = clamp(round(x / scale) + zero_point, low, high)`` and back ``(q - zero_point) * scale``, where round
is half to even and comes *before* the zero point is added: exactly ONNX QuantizeLinear and DequantizeLinear. Two common
shortcuts are not used, because each rounds some ties to another code: multiplying by ``1 / scale`` (as
``torch.fake_quantize_*`` does) and rounding after adding an odd zero point.

Inputs in half precision are computed in float32 and returned in their own dtype; float64 stays float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsebit.numerics.code_type import CodeType
from sparsebit.numerics.layout import PER_TENSOR, Layout, spread
from sparsebit.numerics.packing import pack_bits, unpack_bits
from sparsebit.numerics.snapping import align_grid, compute_dtype, snap_tensor, steps_of

# The scale of a row of zeros. Any scale represents zero exactly; this one also survives float16
# and keeps bias / (input scale * weight scale) inside int32, so a dead channel still delivers its bias.
SCALE_OF_ZEROS = 2.0**-20
# Scales below 2**-14, the least normal number of float16, are needed: for small weights at 8 bits. Engines read them.
LEAST_IN_FLOAT16 = 2.0**-24


@dataclass(frozen=True, eq=False)
class Grid:
    """Scales and zero points, which elements share them, and the type of the codes.

    ``scale`` may be float32, float16, bfloat16 or float64; its numbers are used without conversion, so a grid that is
    stored in half precision is the same after reading. With a token layout there is one scale per token of a single
    tensor.

    Example:
        >>> grid = Grid(torch.tensor([0.5]), torch.tensor([3.0]), CodeType("uint", 8))
        >>> grid.codes(torch.tensor([-1.5, 0.2, 999.0]))
        tensor([  0,   3, 255], dtype=torch.uint8)
        >>> grid.numbers(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([ -1.5000, 126.0000])
    """

    scale: Tensor  # [C], one for each row of the layout
    zero_point: Tensor  # [C], integer-valued; 0 where the codes are not integers
    code: CodeType
    layout: Layout = PER_TENSOR
    order: Tensor | None = None  # [in]: the input channel at each place when groups are cut in another order

    def codes(self, x: Tensor) -> Tensor:
        """The codes of ``x``, in its shape, in ``code.dtype``.

        Example:
            >>> Grid(torch.ones(1), torch.zeros(1), CodeType("int", 2)).codes(torch.tensor([-0.5, 0.5, 1.5, 9.0]))
            tensor([0, 0, 1, 1], dtype=torch.int8)
        """
        view, scale, zero_point = self._aligned(x)
        steps = self.code.round_(torch.div(view, scale))
        if self.code.is_integer:
            steps = steps.add_(zero_point)
        return self.code.encode(steps.clamp_(self.code.low, self.code.high)).reshape(x.shape)

    def numbers(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers that codes represent, ``(q - zero_point) * scale``, in ``dtype``."""
        return numbers_of(codes, self.scale, self.zero_point, self.code, self.layout, dtype, self.order)

    def snap(self, x: Tensor, gradient_scale: float | Tensor = 1.0) -> Tensor:
        """``numbers(codes(x))``; gradients pass straight through inside the range and stop outside.

        If scale or zero point require gradients, they get those of learned step size quantization, multiplied by
        ``gradient_scale``.

        Example:
            >>> x, scale = torch.tensor([-9.0, 0.4, 0.6], requires_grad=True), torch.ones(1, requires_grad=True)
            >>> y = Grid(scale, torch.zeros(1), CodeType("int", 2)).snap(x)
            >>> y.sum().backward()
            >>> y.detach(), x.grad, scale.grad
            (tensor([-2.,  0.,  1.]), tensor([0., 1., 1.]), tensor([-2.]))
        """
        return snap_tensor(
            x, self.scale, self.zero_point, self.code, self.layout, gradient_scale, order=self.order
        )

    def steps(self, x: Tensor) -> Tensor:
        """``snap(x) / scale`` without a division: multiples of the scale, in the compute dtype."""
        view, scale, zero_point = self._aligned(x)
        return steps_of(view, scale, zero_point, self.code).reshape(x.shape)

    def positions(self, x: Tensor) -> Tensor:
        """``x / scale``: numbers in units of the scale, neither rounded nor clamped."""
        view, scale, _ = self._aligned(x)
        return torch.div(view, scale).reshape(x.shape)

    def ends(self, *, beyond: float = 0.0) -> tuple[Tensor, Tensor]:
        """The numbers of the lowest and the highest code, [C] each, moved outwards by ``beyond`` steps."""
        low, high = self.code.low - beyond, self.code.high + beyond
        return (low - self.zero_point) * self.scale, (high - self.zero_point) * self.scale

    def spread(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Scale and zero point in a shape that broadcasts against a tensor of this shape."""
        if self.scale.numel() == 1:
            return self.scale, self.zero_point
        scale, zero_point = (
            spread(values, shape, self.layout, self.order) for values in (self.scale, self.zero_point)
        )
        return scale, zero_point

    def pack(self, codes: Tensor) -> Tensor:
        """Codes [..., n] as a bit stream along the last axis, bytes [..., ceil(n * bits / 8)], counted from ``low``.

        Example:
            >>> grid = Grid(torch.ones(1), torch.zeros(1), CodeType("int", 4))
            >>> packed = grid.pack(torch.tensor([[-8, 7, 0]], dtype=torch.int8))
            >>> packed, grid.unpack(packed, 3)
            (tensor([[240,   8]], dtype=torch.uint8), tensor([[-8,  7,  0]], dtype=torch.int8))
        """
        if not self.code.is_integer:
            codes = codes.contiguous().view(torch.uint8)
        elif self.code.low:
            codes = codes.to(torch.int16 if self.code.bits <= 8 else torch.int32).sub_(self.code.low)
        return pack_bits(codes, self.code.bits)

    def unpack(self, packed: Tensor, length: int) -> Tensor:
        """The codes [..., length] that ``pack`` packed."""
        return unpack_codes(packed, self.code, length)

    def to(self, device: torch.device | str) -> Grid:
        """The same grid on another device."""
        order = None if self.order is None else self.order.to(device)
        return replace(self, scale=self.scale.to(device), zero_point=self.zero_point.to(device), order=order)

    def detach(self) -> Grid:
        """The same grid, detached from gradients."""
        return replace(self, scale=self.scale.detach(), zero_point=self.zero_point.detach())

    def _aligned(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return align_grid(x, self.scale, self.zero_point, self.layout, self.order)


def numbers_of(
    codes: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    code: CodeType,
    layout: Layout,
    dtype: torch.dtype = torch.float32,
    order: Tensor | None = None,
) -> Tensor:
    """``Grid.numbers`` for the parts of a grid: no object is created, which ``torch.compile`` could not trace."""
    steps = code.decode(codes, compute_dtype(dtype))
    view, scale, zero_point = align_grid(steps, scale, zero_point, layout, order)
    return view.sub(zero_point).mul_(scale).to(dtype).reshape(codes.shape)


def unpack_codes(packed: Tensor, code: CodeType, length: int) -> Tensor:
    """The codes [..., length] that ``Grid.pack`` packed."""
    codes = unpack_bits(packed, code.bits, length)
    if not code.is_integer:
        return codes if code.dtype == torch.uint8 else codes.contiguous().view(code.dtype)
    if not code.low:
        return codes.to(code.dtype)
    if code.bits == 8:  # flipping the highest bit is the same, without a wider type in between
        return torch.bitwise_xor(codes, 128).view(torch.int8)
    return codes.to(code.dtype).add_(code.low)


def choose_grid(
    lo: Tensor,
    hi: Tensor,
    code: CodeType,
    layout: Layout | None = None,
    *,
    scale_dtype: torch.dtype | None = None,
    order: Tensor | None = None,
) -> Grid:
    """The grid that covers an observed range, ``lo`` to ``hi``, [C] each.

    The range is first widened to contain zero, so that padding and ReLU zeros stay exact. ``CodeType`` says which scale
    each type has. With ``scale_dtype`` the scale is rounded to that dtype before anything is computed from it, the zero
    point included; without, it is float32 (float64 for a range in float64).

    Example:
        >>> choose_grid(torch.tensor([-1.0]), torch.tensor([3.0]), CodeType("uint", 2)).zero_point
        tensor([1.])
        >>> choose_grid(torch.tensor([-1.0]), torch.tensor([4.0]), CodeType("full", 4)).scale  # 4 is code -8
        tensor([-0.5000])
    """
    scale, zero_point = choose_scale(lo, hi, code, scale_dtype)
    return Grid(scale, zero_point, code, layout or PER_TENSOR, order)


def choose_scale(
    lo: Tensor, hi: Tensor, code: CodeType, scale_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Scale and zero point of ``choose_grid``, without creating a grid."""
    wide = compute_dtype(lo.dtype)
    lo, hi = lo.to(wide).clamp(max=0), hi.to(wide).clamp(min=0)
    if code.kind == "full":
        size, sign = torch.maximum(-lo, hi) / -code.low, torch.where(hi > -lo, -1.0, 1.0).to(wide)
    elif code.symmetric:
        size, sign = torch.maximum(-lo, hi) / code.high, None
    else:  # divided one by one, because hi - lo may overflow where both ends are finite
        size, sign = hi / code.high - lo / code.high, None
    kept = scale_dtype or wide
    least = LEAST_IN_FLOAT16 if kept == torch.float16 else torch.finfo(kept).tiny
    size = torch.where(size > 0, size.clamp(min=least, max=torch.finfo(kept).max), SCALE_OF_ZEROS)
    scale = (size if sign is None else size * sign).to(kept)
    # 0 - lo, because -lo would be -0.0 where nothing is below zero.
    zero_point = torch.zeros_like(scale, dtype=wide)
    if not code.symmetric:
        zero_point = ((0 - lo) / scale.to(wide)).round().clamp(code.low, code.high)
    return scale, zero_point
