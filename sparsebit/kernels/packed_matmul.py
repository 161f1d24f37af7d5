"""Products with a weight that stays packed in 2, 3, 4 or 8 bits: the torch operator ``sparsebit::packed_matmul``.

One vector is multiplied in float32 while a small weight is read once; up to ``BATCH`` vectors go through the matrix
units, with the weight unpacked in registers; for more, the weight is written out in float in one pass and cuBLAS
multiplies. The reference is ``F.linear`` with ``Grid.numbers``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from sparsebit.kernels.launch import AVAILABLE, launch, on_device_of

BATCH = 64  # the most vectors that are multiplied with the packed weight
# Tiles of each kernel, replaced in benchmarks to compare: rows, words, stages of loads, warps.
VECTOR_TILE = (8, 128, 4, 4)
BATCH_TILE = (128, 16, 4, 4)
PROGRAMS = (
    528  # four for each multiprocessor of a large GPU: fewer tiles of rows are divided along the inputs
)
LARGE = (
    2**25
)  # numbers of a weight from which one vector goes through the matrix units too: they unpack faster
SEVERAL = 3  # vectors that are multiplied one by one where the matrix units cannot be used
MAGIC = {8: 0x43800000}  # bits of 256.0, which has room for 8 bits
OTHER_MAGIC = 0x43000000  # of 128.0

_library = torch.library.Library("sparsebit", "FRAGMENT")
_library.define(
    "packed_matmul(Tensor x, Tensor packed, Tensor scale, Tensor? zero_point, int bits, int low) -> Tensor",
    tags=(torch.Tag.needs_exact_strides,),
)


def covers(x: Tensor, packed: Tensor, scale: Tensor, bits: int, group_size: int | None) -> bool:
    """Whether the kernels can multiply x [..., in] with a packed weight [out, bytes], scales in row order.

    Groups (or rows, where there are none) have to consist of 32-bit words, of 3 words for 3 bits. No gradients are
    computed.
    """
    rows, channels = packed.shape[0], x.shape[-1]
    size = channels if group_size is None else min(group_size, channels)
    if not x.is_cuda or bits not in (2, 3, 4, 8) or x.dtype not in (torch.float16, torch.bfloat16):
        return False
    if x.requires_grad and torch.is_grad_enabled():
        return False
    if not x.numel() or not rows or channels % size or size % values_of(bits) or not packed.is_contiguous():
        return False
    return scale.numel() == rows * (channels // size) and packed.storage_offset() % 4 == 0 and AVAILABLE


def multiply_packed(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    """``x @ weight.T`` where ``covers`` says yes.

    ``zero_point`` counts in the values of the type, from ``low``; None where all are 0.
    """
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return torch.ops.sparsebit.packed_matmul(x, packed, scale, zero_point, bits, low)  # type: ignore[no-any-return]
    return _run(x, packed, scale, zero_point, bits, low)


def values_of(bits: int) -> int:
    """How many values fill one word, or three."""
    return 32 if bits == 3 else 32 // bits


def fits_matrix_units(channels: int, bits: int) -> bool:
    """Whether a row divides into blocks of words without a rest, which the kernel for several vectors needs."""
    return bits != 3 and channels % (BATCH_TILE[1] * values_of(bits)) == 0


def _run(x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int) -> Tensor:
    rows, channels = packed.shape[0], x.shape[-1]
    flat = x.reshape(-1, channels).contiguous()
    batch = flat.shape[0]
    with on_device_of(x):
        fits = fits_matrix_units(channels, bits)
        alone = SEVERAL if not fits else 1 if rows * channels < LARGE else 0
        if batch <= alone:
            y = _multiply_vector(flat, packed, scale, zero_point, bits, low)
        elif batch <= BATCH and fits:
            y = _multiply_batch(flat, packed, scale, zero_point, bits, low)
        else:
            y = F.linear(flat, _write_numbers(flat, packed, scale, zero_point, bits, low))
    return y.reshape(*x.shape[:-1], rows)


def _sizes(x: Tensor, packed: Tensor, scale: Tensor, bits: int) -> tuple[int, int, int, int]:
    """Rows, units a row, groups a row and units a group."""
    rows, units = packed.shape[0], x.shape[-1] // values_of(bits)
    groups = scale.numel() // rows
    return rows, units, groups, units // groups


def _multiply_vector(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    from sparsebit.kernels import packed_matmul_triton as kernels

    rows, units, groups, per_group = _sizes(x, packed, scale, bits)
    tile_rows, tile_units, stages, warps = VECTOR_TILE
    block = math.gcd(per_group, 16)
    blocks = max(1, tile_units // (3 if bits == 3 else 1) // block)
    y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    points = packed if zero_point is None else zero_point
    launch(
        kernels.multiply_vector,
        math.ceil(rows / tile_rows),
        (x, packed.view(torch.int32), scale, points, y),
        (),
        (
            *(rows, units, groups, low, MAGIC.get(bits, OTHER_MAGIC)),
            *(bits, 3 if bits == 3 else 1, values_of(bits), zero_point is not None, per_group),
            *(tile_rows, 1 << (blocks.bit_length() - 1), block, stages),
        ),
        warps=warps,
        across=x.shape[0],
    )
    return y


def _multiply_batch(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    from sparsebit.kernels import packed_matmul_triton as kernels

    rows, units, groups, per_group = _sizes(x, packed, scale, bits)
    batch, values = x.shape[0], values_of(bits)
    tile_rows, block, stages, warps = BATCH_TILE
    down, blocks = math.ceil(rows / tile_rows), units // block
    parts = min(max(1, PROGRAMS // down), max(1, blocks // 4))
    per_part = math.ceil(blocks / parts)
    parts = math.ceil(blocks / per_part)
    arranged, sums = torch.empty_like(x), torch.empty(blocks, batch, device=x.device)
    tile = max(1, 1024 // (block * values))
    launch(
        kernels.arrange,
        math.ceil(blocks / tile),
        (x, arranged, sums),
        (),
        (units, batch, values, block, tile),
        across=batch,
    )
    dtype = x.dtype if parts == 1 else torch.float32
    made = torch.empty(parts, batch, rows, dtype=dtype, device=x.device)
    asm = bits == 4 and (low == -8 or zero_point is not None)
    launch(
        kernels.multiply_batch,
        down,
        (arranged, sums, packed.view(torch.int32), scale, packed if zero_point is None else zero_point, made),
        (),
        (
            *(batch, rows, units, groups, per_part * block, low, -8 - low if asm else 0),
            *(bits, values, zero_point is not None, asm, per_group),
            *(tile_rows, max(16, 1 << (batch - 1).bit_length()), block, stages),
        ),
        warps=warps,
        across=parts,
    )
    if parts == 1:
        return made[0]
    y = torch.empty(batch, rows, dtype=x.dtype, device=x.device)
    launch(kernels.add_parts, math.ceil(y.numel() / 256), (made, y), (), (y.numel(), parts, 256), warps=1)
    return y


def _write_numbers(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    from sparsebit.kernels import packed_matmul_triton as kernels

    rows, units, groups, per_group = _sizes(x, packed, scale, bits)
    values, has_zero = values_of(bits), zero_point is not None
    channels = units * values
    weight = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
    points = packed if zero_point is None else zero_point
    tensors = (packed.view(torch.int32), scale, points, weight)
    if bits == 3:
        programs = math.ceil(rows / 4) * math.ceil(channels / 512)
        sizes = (rows, channels, groups, low, has_zero, per_group * values, 4, 512)
        launch(kernels.write_numbers_of_3_bits, programs, tensors, (), sizes)
    else:
        programs = math.ceil(rows / 8) * math.ceil(units / 64)
        settings = (rows, units, groups, low, bits, values, has_zero, per_group, 8, 64)
        launch(kernels.write_numbers, programs, tensors, (), settings)
    return weight


def _fake(x: Tensor, packed: Tensor, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


_library.impl("packed_matmul", _run, "CUDA")
torch.library.register_fake("sparsebit::packed_matmul", _fake, lib=_library)
