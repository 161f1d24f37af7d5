"""Products with a weight that stays packed in 2, 4 or 8 bits: the torch operator ``sparsebit::packed_matmul``.

One vector reads every row of the weight once; up to ``BATCH`` vectors go through the matrix units; for more, the weight
is written out in float in one pass and cuBLAS multiplies. The reference is ``F.linear`` with ``Grid.numbers``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.kernels.launch import AVAILABLE

BATCH = 16  # as many vectors as one step of the matrix units takes
# Rows and words of a tile, and warps, of each kernel. Replaced in benchmarks to compare.
VECTOR_TILE = (8, 256, 4)
BATCH_TILE = (32, 16, 4)
PROGRAMS = (
    528  # four for each multiprocessor of a large GPU: fewer rows than that are divided along the inputs
)

_library = torch.library.Library("sparsebit", "FRAGMENT")
_library.define(
    "packed_matmul(Tensor x, Tensor packed, Tensor scale, Tensor zero_point, int bits, int low) -> Tensor",
    tags=(torch.Tag.needs_exact_strides,),
)


def covers(x: Tensor, packed: Tensor, scale: Tensor, bits: int, group_size: int | None) -> bool:
    """Whether the kernels can multiply x [..., in] with a packed weight [out, bytes], scales in row order.

    Groups (or rows, where there are none) have to consist of 32-bit words. No gradients are computed.
    """
    rows, channels = packed.shape[0], x.shape[-1]
    size = channels if group_size is None else min(group_size, channels)
    if not x.is_cuda or bits not in (2, 4, 8) or x.dtype not in (torch.float16, torch.bfloat16):
        return False
    if x.requires_grad and torch.is_grad_enabled():
        return False
    if not x.numel() or not rows or channels % size or size * bits % 32 or not packed.is_contiguous():
        return False
    return scale.numel() == rows * (channels // size) and AVAILABLE


def multiply_packed(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor, bits: int, low: int
) -> Tensor:
    """``x @ weight.T`` where ``covers`` says yes; ``zero_point`` counts in the values of the type, from ``low``."""
    return torch.ops.sparsebit.packed_matmul(x, packed, scale, zero_point, bits, low)  # type: ignore[no-any-return]


def _run(x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor, bits: int, low: int) -> Tensor:
    from sparsebit.kernels import packed_matmul_triton as kernels

    flat = x.reshape(-1, x.shape[-1]).contiguous()
    batch, channels = flat.shape
    rows, per_word, groups = packed.shape[0], 32 // bits, scale.numel() // packed.shape[0]
    words, per_row = packed.view(torch.int32), channels // per_word
    grid = (words, scale, zero_point)
    sizes = (per_row, groups, per_row // groups)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        if batch == 1:
            tile_rows, tile_words, warps = VECTOR_TILE
            y = torch.empty(1, rows, dtype=x.dtype, device=x.device)
            kernels.multiply_vector[(math.ceil(rows / tile_rows),)](
                flat, *grid, y, rows, *sizes, low,
                BITS=bits, PER_WORD=per_word, TILE_ROWS=tile_rows, TILE_WORDS=tile_words, num_warps=warps,
            )  # fmt: skip
        elif batch <= BATCH:
            tile_rows, tile_words, warps = BATCH_TILE
            down, tiles = math.ceil(rows / tile_rows), math.ceil(per_row / tile_words)
            parts = min(tiles, max(1, PROGRAMS // down))
            per_part = math.ceil(tiles / parts) * tile_words
            parts = math.ceil(per_row / per_part)
            kind = x.dtype if parts == 1 else torch.float32
            sums = torch.empty(parts, batch, rows, dtype=kind, device=x.device)
            kernels.multiply_batch[(down, parts)](
                flat, *grid, sums, batch, rows, *sizes, per_part, low,
                BITS=bits, PER_WORD=per_word, BATCH=BATCH, TILE_ROWS=tile_rows, TILE_WORDS=tile_words,
                num_warps=warps,
            )  # fmt: skip
            y = sums[0] if parts == 1 else sums.sum(0, dtype=torch.float32).to(x.dtype)
        else:
            weight = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
            kernels.write_numbers[(math.ceil(rows / 8) * math.ceil(per_row / 64),)](
                *grid, weight, rows, *sizes, low,
                BITS=bits, PER_WORD=per_word, TILE_ROWS=8, TILE_WORDS=64,
            )  # fmt: skip
            y = F.linear(flat, weight)
    return y.reshape(*x.shape[:-1], rows)


def _fake(x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor, bits: int, low: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


_library.impl("packed_matmul", _run, "CUDA")
torch.library.register_fake("sparsebit::packed_matmul", _fake, lib=_library)
