"""Products with a weight that stays packed in 2, 3, 4 or 8 bits: the torch operator ``sparsebit::packed_matmul``.

One vector is multiplied by plain arithmetic. Several go through the matrix units, with the weight unpacked in
registers; Hopper has a separate kernel where that is faster. For many, the weight is unpacked to memory and cuBLAS
multiplies. The reference is ``F.linear`` with ``Grid.numbers``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from sparsebit.kernels.counters import take_counters
from sparsebit.kernels.launch import AVAILABLE, launch, on_device_of
from sparsebit.kernels.packed_warpgroup import (
    LARGE,
    has_warpgroups,
    multiply_by_warpgroups,
    plan_call,
    values_of,
)

# By bit width: the most vectors that one launch multiplies by the packed weight (BATCH), and the most in several
# launches for a small and a large weight (MOST). Beyond that, unpacking the weight is faster.
BATCH = {2: 64, 3: 64, 4: 128, 8: 64}
MOST = {2: (64, 128), 3: (64, 64), 4: (128, 128), 8: (64, 64)}
BLOCK = 16  # units of a row that the matrix units multiply at once
UNPACKED_BYTES = 2**25  # of the unpacked weight that exist at once
IN_PARTS = 2048  # vectors from which unpacking in parts is faster than all at once
SINGLY = 3  # up to so many vectors are multiplied one by one without that kernel, for 3 bits or groups of 32
FEW_SCALED = 16  # up to so many vectors, 4-bit values in groups of 32 are scaled one by one
PIECE = 32  # channels that a thread processes at once without matrix units
ONE = 0x3F800000  # the bits of 1.0
# The fewest vectors that are computed: for 3 bits, computing 16 is faster even if only one is needed.
FEWEST = {3: 16}
# Rows of a tile, blocks read at once, stages, warps, programs, and registers per thread (None: no limit). Keyed by the
# largest number of vectors and the bit width, for small and for large weights. The fastest settings measured on an
# H200 with groups of 128; benchmarks replace them to compare.
Tile = tuple[int, int, int, int, int, int | None]
_FEW: Tile = (64, 2, 3, 4, 792, 80)
_MANY: Tile = (128, 1, 3, 4, 264, None)
_SMALL: Tile = (64, 1, 3, 4, 264, None)
_FOUR_STAGES: Tile = (64, 1, 4, 4, 264, None)
_TWO_STAGES: Tile = (64, 1, 2, 4, 264, None)
_EIGHT: Tile = (64, 2, 3, 4, 528, None)
_WIDE: Tile = (128, 1, 3, 8, 264, None)
_SCALED: Tile = (64, 1, 4, 4, 528, None)  # if values are scaled one by one
TILES: dict[int, dict[int, tuple[Tile, Tile]]] = {
    8: {
        2: (_FEW, (128, 1, 3, 4, 528, 128)),
        4: (_FEW, (64, 2, 3, 4, 660, 96)),
        8: (_EIGHT, _EIGHT),
    },
    16: {
        2: ((128, 2, 3, 8, 264, None), (128, 2, 3, 8, 264, None)),
        3: (_TWO_STAGES, (64, 1, 4, 4, 528, None)),
        4: ((64, 1, 4, 4, 528, None), (128, 1, 3, 4, 792, None)),
        8: (_WIDE, _WIDE),
    },
    32: {2: (_SMALL, _MANY), 3: (_TWO_STAGES, _MANY), 4: (_MANY, _MANY), 8: (_SMALL, _SMALL)},
    64: {
        2: (_SMALL, _MANY),
        3: (_TWO_STAGES, _MANY),
        4: (_FOUR_STAGES, _MANY),
        8: (_FOUR_STAGES, _FOUR_STAGES),
    },
    128: {4: (_SMALL, _SMALL)},
}
# For one vector, by bit width: rows of a program, warps, whether words are prefetched, and registers.
VECTOR_TILES: dict[int, tuple[int, int, bool, int | None]] = {
    2: (16, 4, False, None),
    3: (8, 4, False, None),
    4: (16, 4, False, None),
    8: (4, 4, False, None),
}

_stages: dict[tuple[object, ...], int] = {}  # the most stages that fit, if those of the tables do not

_library = torch.library.Library("sparsebit", "FRAGMENT")
_library.define(
    "packed_matmul(Tensor x, Tensor packed, Tensor scale, Tensor? zero_point, int bits, int low) -> Tensor",
    tags=(torch.Tag.needs_exact_strides,),
)


def covers(x: Tensor, packed: Tensor, scale: Tensor, bits: int) -> bool:
    """Whether the kernels can multiply x [..., in] with a packed weight [out, bytes] that has scales [groups, out].

    Channels must be a multiple of 32, and groups must fill 32-bit words (3 words for 3 bits). Gradients are not
    computed.
    """
    rows, channels, groups = packed.shape[0], x.shape[-1], scale.shape[0]
    if not x.is_cuda or bits not in (2, 3, 4, 8) or x.dtype not in (torch.float16, torch.bfloat16):
        return False
    if x.requires_grad and torch.is_grad_enabled():
        return False
    if not x.numel() or not rows or scale.shape[1] != rows:
        return False
    if channels % PIECE or channels % (groups * values_of(bits)):
        return False
    return packed.is_contiguous() and packed.storage_offset() % 4 == 0 and AVAILABLE


def multiply_packed(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    """``x @ weight.T``, for inputs that ``covers`` accepts.

    ``scale`` and ``zero_point`` are [groups, out]; zero points are quantized values, or None if all are 0.
    """
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return torch.ops.sparsebit.packed_matmul(x, packed, scale, zero_point, bits, low)  # type: ignore[no-any-return]
    return _run(x, packed, scale, zero_point, bits, low)


def _run(x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int) -> Tensor:
    rows, channels = packed.shape[0], x.shape[-1]
    flat = x.reshape(-1, channels).contiguous()
    with on_device_of(x):
        y = _run_flat(flat, packed, scale, zero_point, bits, low)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], rows)


def _run_flat(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    """Choose the fastest way that this device supports for this number of vectors."""
    rows, (batch, channels), groups = packed.shape[0], x.shape, scale.shape[0]
    group_size = channels // groups
    plan = plan_call(rows, channels, groups, bits, batch)
    aligned = all(one is None or one.data_ptr() % 16 == 0 for one in (x, packed, scale, zero_point))
    if plan is not None and aligned and x.is_cuda and has_warpgroups(x.get_device()):
        return multiply_by_warpgroups(x, packed, scale, zero_point, bits, low, plan)
    if batch <= (SINGLY if bits == 3 or group_size == PIECE else 1) and group_size % PIECE == 0:
        return _multiply_singly(x, packed, scale, zero_point, bits, low)
    if batch <= MOST[bits][rows * channels >= LARGE]:
        y = _multiply(x, packed, scale, zero_point, bits, low)
        if y is not None:
            return y
    return _multiply_unpacked(x, packed, scale, zero_point, bits, low)


def _sizes(x: Tensor, packed: Tensor, scale: Tensor, bits: int) -> tuple[int, int, int]:
    """Rows, units per row and units per group."""
    units = x.shape[-1] // values_of(bits)
    return packed.shape[0], units, units // scale.shape[0]


def _multiply(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor | None:
    """The product with the packed weight, in parts for many vectors; None if no tile fits the device."""
    y = torch.empty(x.shape[0], packed.shape[0], dtype=x.dtype, device=x.device)
    at_once = math.ceil(x.shape[0] / math.ceil(x.shape[0] / BATCH[bits]))
    for part, of_part in zip(x.split(at_once), y.split(at_once), strict=True):
        if not _multiply_part(part, packed, scale, zero_point, bits, low, of_part):
            return None
    return y


def _multiply_part(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int, y: Tensor
) -> bool:
    """Fill ``y``, with fewer stages than in the tables if the device's shared memory is too small."""
    from triton.runtime.errors import OutOfResources

    from sparsebit.kernels import packed_matmul_triton as kernels

    rows, units, per_group = _sizes(x, packed, scale, bits)
    batch, places = x.shape[0], {2: 16, 3: 32}.get(bits, 8)
    block = math.gcd(per_group, BLOCK)
    scaled = block < 4 or (block < 8 and bits == 4 and batch <= FEW_SCALED)
    padded = max(16 if scaled else 8, FEWEST.get(bits, 0), 1 << (batch - 1).bit_length())
    small, large = next(of for most, of in TILES.items() if padded <= most)[bits]
    chosen = large if rows * x.shape[1] >= LARGE else small
    if scaled:  # too few units for the matrix units, or slower than several scales per block
        block, chosen = math.gcd(units, BLOCK), _SCALED
    tile, at_once, stages, warps, programs, registers = chosen
    blocks = units // block
    if blocks % at_once:
        at_once = 1
    # Vectors up to ``padded`` are multiplied but not written, so their values do not matter.
    arranged = torch.empty(padded, units * places, dtype=x.dtype, device=x.device)
    sums = torch.empty(blocks, padded, device=x.device)
    several = max(1, 1024 // (block * places))
    launch(
        kernels.arrange,
        math.ceil(blocks / several),
        (x, arranged, sums),
        (),
        (blocks, padded, bits, places, block, several),
        across=batch,
    )
    tiles = math.ceil(rows / tile)
    per_program = at_once * math.ceil(tiles * blocks / at_once / programs)
    parts = 1 if per_program % blocks == 0 else math.ceil(blocks / per_program) + 1
    made = torch.empty(parts * batch * rows if parts > 1 else 1, device=x.device)
    before: tuple[int | bool, ...] = (
        *(batch, rows, units, per_program, low),
        *(bits, 3 if bits == 3 else 1, places, zero_point is not None, per_group),
        *(scaled, padded > 8, parts, tile, padded, block, at_once),
    )
    key = (x.device, x.dtype, scale.dtype, *before[4:], warps)
    for fewer in range(_stages.get(key, stages), 0, -1):
        try:
            launch(
                kernels.multiply,
                math.ceil(tiles * blocks / per_program),
                (
                    *(arranged, sums, packed.view(torch.int32), scale),
                    *(packed if zero_point is None else zero_point, made, take_counters(x.device, tiles), y),
                ),
                (),
                (*before, fewer),
                warps=warps,
                registers=registers,
            )
        except OutOfResources:
            _stages[key] = fewer - 1
        else:
            return True
    return False


def _multiply_unpacked(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    """The product with the weight in float; for many vectors, in parts that fit the device's cache."""
    rows, channels = packed.shape[0], x.shape[1]
    at_once = rows
    if x.shape[0] >= IN_PARTS:
        at_once = max(128, UNPACKED_BYTES // (x.element_size() * channels) // 128 * 128)
    made = torch.empty(min(rows, at_once), channels, dtype=x.dtype, device=x.device)
    y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    for first in range(0, rows, at_once):
        end = min(rows, first + at_once)
        _write_numbers(made, first, end, packed, scale, zero_point, bits, low)
        torch.mm(x, made[: end - first].T, out=y[:, first:end])
    return y


def _write_numbers(
    made: Tensor,
    first: int,
    end: int,
    packed: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    bits: int,
    low: int,
) -> None:
    """Unpack rows ``first`` to ``end`` of the weight."""
    from sparsebit.kernels import packed_pieces_triton as kernels

    rows, channels = packed.shape[0], made.shape[1]
    pieces, per_program = channels // PIECE, 128
    launch(
        kernels.write_numbers,
        math.ceil((end - first) * pieces / per_program),
        (packed.view(torch.int32), scale, packed if zero_point is None else zero_point, made),
        (),
        (
            *(rows, first, end, pieces, low, ONE),
            *(bits, zero_point is not None, channels // scale.shape[0], per_program),
        ),
    )


def _multiply_singly(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int
) -> Tensor:
    """The product of each vector by plain arithmetic."""
    from sparsebit.kernels import packed_pieces_triton as kernels

    rows, pieces = packed.shape[0], x.shape[1] // PIECE
    at_once, warps, ahead, registers = VECTOR_TILES[bits]
    y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
    for vector, of_vector in zip(x, y, strict=True):
        launch(
            kernels.multiply_vector,
            math.ceil(rows / at_once),
            (
                vector,
                packed.view(torch.int32),
                scale,
                packed if zero_point is None else zero_point,
                of_vector,
            ),
            (),
            (
                *(rows, pieces, low, ONE, bits, zero_point is not None, pieces // scale.shape[0]),
                *(at_once, 32 * warps, ahead),
            ),
            warps=warps,
            registers=registers,
        )
    return y


def _fake(x: Tensor, packed: Tensor, *_: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], packed.shape[0])


_library.impl("packed_matmul", _run, "CUDA")
torch.library.register_fake("sparsebit::packed_matmul", _fake, lib=_library)
