"""Blocks of 32 weights in the layout of ggml: Q4_0, Q4_1 and Q8_0. A grid is copied exactly or refused.

Q4_0 is an fp16 scale ``d`` and 16 bytes, the low halves for the first 16 weights and the high halves for the rest, for
``d * (q - 8)``. Q4_1 has an fp16 minimum ``m`` after the scale, for ``d * q + m``. Q8_0 is an fp16 scale and 32 signed
bytes, for ``d * q``. Larger groups repeat their scale; fewer bits than four are stored as four.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sparsebit.llm.formats.format import by_rows
from sparsebit.numerics import CodeType
from sparsebit.numerics.packed import PackedTensor

BLOCK = 32
BlockType = Literal["Q4_0", "Q4_1", "Q8_0"]
BLOCK_BYTES: dict[str, int] = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def block_type(held: PackedTensor) -> BlockType | str:
    """The type of block that stores these values exactly, or the reason why there is none."""
    found = block_type_of(held.grid.code, held.grid.layout.group_size, held.shape[1])
    if not _is_half(held.grid.scale):
        return "its scales are fp16"
    if found == "Q4_1" and not _is_half(held.grid.scale.float() * held.grid.zero_point):
        return "scale times zero point is not an fp16 number"
    return found


def block_type_of(code: CodeType, group_size: int | None, columns: int) -> BlockType | str:
    """The type of block for these quantized values, or why there is none. Q4_1 is exact only for some scales.

    Example:
        >>> block_type_of(CodeType("full", 3), 64, 128), block_type_of(CodeType("full", 4), 16, 128)
        ('Q4_0', 'its blocks are 32 input channels, the groups are 16 of 128')
    """
    size = group_size or columns
    if columns % BLOCK or size % BLOCK:
        return f"its blocks are {BLOCK} input channels, the groups are {size} of {columns}"
    if code.kind in ("int", "full") and code.bits <= 4:
        return "Q4_0"
    if code.kind in ("int", "full") and code.bits == 8:
        return "Q8_0"
    if code.kind == "uint" and code.bits <= 4:
        return "Q4_1"
    return f"it has no type of block for {code}"


def pack_blocks(held: PackedTensor, kind: str) -> Tensor:
    """The bytes of a matrix, [out, bytes of a row].

    Example:
        >>> from sparsebit.numerics import CodeType, Grid, Layout
        >>> grid = Grid(torch.ones(1, dtype=torch.float16), torch.zeros(1), CodeType("full", 4), Layout(kind="channel"))
        >>> pack_blocks(PackedTensor.of(torch.arange(-8.0, 8).repeat(1, 2), grid), "Q4_0")[0, :5].tolist()  # 1 first
        [0, 60, 0, 17, 34]
    """
    rows, columns = held.shape
    count = columns // BLOCK
    codes = held.codes().reshape(rows, count, BLOCK)
    scale, zero_point = (values.repeat_interleave(count // values.shape[1], 1) for values in by_rows(held))
    parts = [_bytes(scale)]
    if kind == "Q4_1":
        parts.append(_bytes(-(scale.float() * zero_point)))
    if kind == "Q8_0":
        parts.append(codes.view(torch.uint8))
    else:
        quarters = (codes.to(torch.int16) + (8 if kind == "Q4_0" else 0)).to(torch.uint8)
        parts.append(quarters[..., :16] | quarters[..., 16:] << 4)
    return torch.cat(parts, -1).reshape(rows, -1)


def _bytes(values: Tensor) -> Tensor:
    """fp16 values [rows, blocks] as bytes [rows, blocks, 2]."""
    return values.half().contiguous().view(torch.uint8).reshape(*values.shape, 2)


def _is_half(values: Tensor) -> bool:
    return bool((values.half().float() == values.float()).all())
