"""A tensor as packed codes with their grid, and its conversion to and from files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.numerics.code_type import CodeType
from sparsebit.numerics.grid import Grid
from sparsebit.numerics.layout import Layout, row_count
from sparsebit.numerics.packing import packed_length
from sparsebit.numerics.snapping import compute_dtype
from sparsebit.storage.typed import from_plain

_DTYPES = {
    str(t).removeprefix("torch."): t for t in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}


@dataclass(frozen=True, eq=False)
class PackedTensor:
    """The codes of a tensor as bit streams, one for each index of its first axis.

    Example:
        >>> grid = Grid(torch.tensor([0.5]), torch.zeros(1), CodeType("int", 4))
        >>> packed = PackedTensor.of(torch.tensor([[0.4, -9.0, 1.2]]), grid)
        >>> packed.bits, packed.numbers()
        (tensor([[ 9, 10]], dtype=torch.uint8), tensor([[ 0.5000, -4.0000,  1.0000]]))
    """

    bits: Tensor  # [shape[0], bytes], uint8
    grid: Grid
    shape: tuple[int, ...]
    dtype: torch.dtype  # of the numbers

    @classmethod
    def of(cls, x: Tensor, grid: Grid) -> PackedTensor:
        """Quantize and pack a tensor."""
        x, grid = x.detach(), grid.detach()
        codes = grid.codes(x)
        rows = codes.flatten(1) if codes.dim() > 1 else codes.reshape(-1, 1)
        return cls(grid.pack(rows), grid, tuple(x.shape), x.dtype)

    def codes(self) -> Tensor:
        """The codes, in the shape of the tensor."""
        return self.grid.unpack(self.bits, math.prod(self.shape[1:])).reshape(self.shape)

    def numbers(self, dtype: torch.dtype | None = None) -> Tensor:
        """The numbers that the codes represent: equal bit for bit to the snapped tensor, or rounded to ``dtype``."""
        return self.grid.numbers(self.codes(), dtype or self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, the scales and the zero points, those packed like the codes."""
        grid = self.grid
        points = 0 if grid.code.symmetric else packed_length(grid.scale.numel(), grid.code.bits)
        return self.bits.numel() + grid.scale.nbytes + points

    def to_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors for a safetensors file and a description for JSON. Zero points that are all 0 are left out."""
        grid = self.grid
        tensors = {"bits": self.bits, "scale": grid.scale.contiguous()}
        if bool(grid.zero_point.any()):
            tensors["zero_point"] = grid.zero_point.to(grid.code.dtype)
        if grid.order is not None:
            tensors["order"] = grid.order.to(torch.int32)
        description = {
            "type": str(grid.code),
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "layout": asdict(grid.layout) | {"axes": list(grid.layout.axes)},
        }
        return tensors, description

    @classmethod
    def from_parts(cls, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> PackedTensor:
        """The tensor that ``to_parts`` wrote; anything else raises ``SparsebitError``."""
        try:
            code, layout = CodeType.parse(description["type"]), from_plain(Layout, description["layout"])
            shape, dtype = tuple(description["shape"]), _DTYPES[description["dtype"]]
            bits, scale = tensors["bits"], tensors["scale"]
            if not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError(f"shape {shape}")
            wide = compute_dtype(scale.dtype)
            zero_point = tensors.get("zero_point", torch.zeros_like(scale)).to(wide)
            order = tensors["order"].long() if "order" in tensors else None
            held = cls(bits, Grid(scale, zero_point, code, layout, order), shape, dtype)
            problem = held.find_problem()
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise SparsebitError(
                "this is not a packed tensor", got=f"{type(error).__name__}: {error}"
            ) from None
        if problem is not None:
            raise SparsebitError(f"a packed tensor is damaged: {problem} does not fit", got=f"{description}")
        return held

    def find_problem(self) -> str | None:
        """The part that does not fit the others, or is not a usable number; None if everything fits."""
        code, layout, shape = self.grid.code, self.grid.layout, self.shape
        scale, zero_point, order = self.grid.scale, self.grid.zero_point, self.grid.order
        if self.bits.dtype != torch.uint8 or tuple(self.bits.shape) != packed_shape(shape, code):
            return "bits"  # from here on, the shape fits the stored bytes
        wrong = {
            "scale": scale.dtype not in _DTYPES.values() or scale.dim() != 1 or not _usable(scale, code),
            "the number of scales": scale.numel() not in (1, row_count(shape, layout)),
            "zero_point": zero_point.shape != scale.shape
            or not torch.equal(zero_point, zero_point.clamp(code.low, code.high)),
            "order": order is not None and not _is_permutation(order, shape, layout),
        }
        return next((name for name, is_wrong in wrong.items() if is_wrong), None)


def packed_shape(shape: Sequence[int], code: CodeType) -> tuple[int, int]:
    """The shape of the packed values of a tensor: one stream of bytes for each index of its first axis."""
    return shape[0] if shape else 1, packed_length(math.prod(shape[1:]), code.bits)


def _usable(scale: Tensor, code: CodeType) -> bool:
    """Whether scales are finite, and negative only on a full-range grid."""
    fine = torch.isfinite(scale) & (scale != 0)
    return bool((fine if code.kind == "full" else fine & (scale > 0)).all())


def _is_permutation(order: Tensor, shape: tuple[int, ...], layout: Layout) -> bool:
    if layout.kind != "group" or not shape:
        return False
    length = shape[layout.input_axis % len(shape)]
    return order.shape == (length,) and torch.equal(
        order.sort().values, torch.arange(length, device=order.device)
    )
