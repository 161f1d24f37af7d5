"""A Hopper kernel for products with a weight that stays packed: the matrix units never wait for values to be unpacked.

Import only if Triton is installed. Triton's compiler waits for each product of values in registers. In its lower-level
language, Gluon, the next values are unpacked while a product runs. Weights are packed as in ``packed_matmul_triton``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, no-any-return"

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sparsebit.kernels.packed_matmul_triton import write_assembly

UNITS = gl.constexpr(16)  # of a row, in one block: the number of channels that the matrix units take at once
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its names in Triton 3.7 and in earlier versions


@triton.constexpr_function
def _write_bytes(is_float16: bool) -> str:
    """PTX for 8-bit values, two units at once: both halves of a value as in ``write_assembly``, then their sum."""
    magic, kind = (0x64006400, "f16x2") if is_float16 else (0x43004300, "bf16x2")
    sixteen = 0x4C004C00 if is_float16 else 0x41804180
    lines = [
        ".reg .b32 h, l, u, c;",
        f"mov.b32 c, 0x{sixteen:X};",
    ]
    for place in range(4):
        if place % 2 == 0:
            lines.append(f"prmt.b32 h, $4, $5, {0x5410 if place == 0 else 0x7632};")
        else:
            lines.append("shr.u32 h, h, 8;")
        lines += [
            f"lop3.b32 l, h, 0xF000F, 0x{magic:X}, 0xEA;",
            "shr.u32 u, h, 4;",
            f"lop3.b32 u, u, 0xF000F, 0x{magic:X}, 0xEA;",
            f"sub.{kind} l, l, $6;",
            f"sub.{kind} u, u, $7;",
            f"fma.rn.{kind} l, u, c, l;",
            f"mul.{kind} ${place}, l, $8;",
        ]
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def _assembly(bits: int, is_float16: bool) -> str:
    return _write_bytes(is_float16) if bits == 8 else write_assembly(bits, is_float16, True)


@triton.constexpr_function
def _places(bits: int) -> int:
    """Values of a unit."""
    return 32 if bits == 3 else 32 // bits


@triton.constexpr_function
def _registers(bits: int) -> str:
    return ",".join(["=&r"] * _places(bits) + ["r"] * (9 if bits == 3 else 5))


@triton.constexpr_function
def _results(bits: int, dtype: gl.dtype) -> tuple[gl.dtype, ...]:
    return (dtype,) * _places(bits)


@triton.constexpr_function
def _words_layout(warps: int) -> gl.DistributedLinearLayout:
    """The layout of a block's words: each is in the thread from which the matrix units read its values."""
    rows = [[16 << i, 0] for i in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 1], [8, 0], [0, 8]], [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], rows, [], [16 * warps, 16]
    )


@triton.constexpr_function
def _grouped_layout(warps: int, groups: int) -> gl.DistributedLinearLayout:
    """The same, with a separate axis for groups: [rows, groups, units]."""
    layout, size = _words_layout(warps), 16 // groups
    bases = [
        [[row, unit // size, unit % size] for row, unit in kind]
        for kind in (layout.reg_bases, layout.lane_bases, layout.warp_bases)
    ]
    return gl.DistributedLinearLayout(*bases, [], [16 * warps, groups, size])


@gluon.jit
def _of_units(of_groups, IN_THREAD: gl.constexpr):
    """Expand values per group [rows, groups] to values per unit [rows, units]."""
    rows: gl.constexpr = of_groups.shape[0]
    apart = gl.expand_dims(of_groups, 2)
    spread = gl.broadcast(
        apart,
        gl.full((rows, of_groups.shape[1], UNITS // of_groups.shape[1]), 0, apart.dtype, apart.type.layout),
    )[0]
    return gl.convert_layout(gl.reshape(spread, (rows, UNITS)), IN_THREAD, assert_trivial=True)


@gluon.jit
def _numbers(
    word_tiles, scale_tiles, zero_tiles, stage, IN_THREAD: gl.constexpr, OPERAND: gl.constexpr, BITS: gl.constexpr,
    DTYPE: gl.constexpr, LOW: gl.constexpr, HAS_ZERO: gl.constexpr,
):  # fmt: skip
    """Unpack one block in the order the matrix units read it: the first value of every unit, then the second, ..."""
    raised: gl.constexpr = 1024 if gl.float16 == DTYPE else 128
    unit: gl.constexpr = 3 if BITS == 3 else 1
    by_group: gl.constexpr = gl.SliceLayout(2, _grouped_layout(gl.num_warps(), scale_tiles.shape[1]))
    w0 = word_tiles.index(stage * unit).load(IN_THREAD)
    scale = scale_tiles.index(stage).permute((1, 0)).load(by_group)
    s = _of_units(scale.to(DTYPE), IN_THREAD)
    if HAS_ZERO:
        zero = zero_tiles.index(stage).permute((1, 0)).load(by_group).to(gl.int32) - LOW
    else:
        zero = gl.full(scale.shape, -LOW, gl.int32, by_group)
    if BITS == 8:
        even = _of_units(((zero & 15) + raised).to(DTYPE), IN_THREAD)
        odd = _of_units(((zero >> 4) + raised).to(DTYPE), IN_THREAD)
    else:
        even = _of_units((zero + raised).to(DTYPE), IN_THREAD)
        odd = even
    if BITS == 3:
        w1 = word_tiles.index(stage * unit + 1).load(IN_THREAD)
        w2 = word_tiles.index(stage * unit + 2).load(IN_THREAD)
        given = [w0, w1, w2, even, odd, s]
    else:
        given = [w0, even, odd, s]
    code: gl.constexpr = _assembly(BITS, gl.float16 == DTYPE)
    values = gl.inline_asm_elementwise(code, _registers(BITS), given, _results(BITS, DTYPE), True, 2)
    joined = _joined(values, 0, len(values))
    if BITS == 8:
        ordered = gl.permute(joined, (0, 3, 2, 1))
    elif BITS == 4:
        ordered = gl.permute(joined, (0, 4, 3, 2, 1))
    elif BITS == 2:
        ordered = gl.permute(joined, (0, 5, 4, 3, 2, 1))
    else:
        ordered = gl.permute(joined, (0, 6, 5, 4, 3, 2, 1))
    ordered = gl.reshape(ordered, (w0.shape[0], UNITS * len(values)))
    return gl.convert_layout(ordered, OPERAND, assert_trivial=True)


@gluon.jit
def _joined(values, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """Join tensors into one whose last dimension holds the two halves."""
    if COUNT == 1:
        return values[FIRST]
    else:
        half: gl.constexpr = COUNT // 2
        return gl.join(_joined(values, FIRST, half), _joined(values, FIRST + half, half))


@gluon.jit
def multiply(
    x_ptr, words_ptr, scale_ptr, zero_point_ptr, parts_ptr, counts_ptr, y_ptr,
    batch, rows, units_per_row, per_program, across, turns,
    LOW: gl.constexpr, BITS: gl.constexpr, UNIT: gl.constexpr, HAS_ZERO: gl.constexpr,
    UNITS_PER_GROUP: gl.constexpr, BATCH: gl.constexpr, STAGES: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """``x @ weight.T``, with x from ``arrange`` in blocks of 16 units and a multiple of ``BATCH`` vectors.

    Tiles are ``BATCH`` vectors of 16 rows a warp. Their blocks are divided evenly among the programs, and parts of
    tiles added up, as in ``packed_matmul_triton.multiply``.
    """
    warps: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = x_ptr.dtype.element_ty
    places: gl.constexpr = _places(BITS)
    wide: gl.constexpr = places * UNITS  # channels of a block
    tall: gl.constexpr = 16 * warps
    in_thread: gl.constexpr = _words_layout(warps)
    result: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BATCH, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, result, 2)
    copied: gl.constexpr = (
        gl.BlockedLayout([1, 4], [8, 4], [warps, 1], [1, 0])
        if UNIT == 1
        else gl.BlockedLayout([1, 1], [2, 16], [warps, 1], [1, 0])
    )
    copied_x: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    kept_words: gl.constexpr = gl.SwizzledSharedLayout(4, 2, 4, [1, 0])
    kept_x: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    word_tiles = gl.allocate_shared_memory(gl.int32, [STAGES * UNIT, tall, UNITS], kept_words)
    x_tiles = gl.allocate_shared_memory(dtype, [STAGES, BATCH, wide], kept_x)
    groups: gl.constexpr = 1 if UNITS_PER_GROUP >= UNITS else UNITS // UNITS_PER_GROUP  # of a block
    copied_scales: gl.constexpr = gl.BlockedLayout([1, tall // 32], [1, 32], [warps, 1], [1, 0])
    kept_scales: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    scale_tiles = gl.allocate_shared_memory(scale_ptr.dtype.element_ty, [STAGES, groups, tall], kept_scales)
    zero_tiles = scale_tiles
    if HAS_ZERO:
        zero_tiles = gl.allocate_shared_memory(
            zero_point_ptr.dtype.element_ty, [STAGES, groups, tall], kept_scales
        )

    blocks = units_per_row // UNITS
    at = gl.program_id(0) * per_program
    program = gl.program_id(0)
    stop = gl.minimum(at + per_program, gl.cdiv(rows, tall) * across * blocks)
    while at < stop:
        tile = at // blocks
        begin = at - tile * blocks
        end = gl.minimum(blocks, begin + stop - at)
        first_row = tile // across * tall
        first_vector = (tile % across) * BATCH
        # Rows after the last one read the last one's values and are not written.
        copied_row = gl.minimum(first_row + gl.arange(0, tall, gl.SliceLayout(1, copied)), rows - 1)
        copied_unit = gl.arange(0, UNITS, gl.SliceLayout(0, copied))
        at_words = (
            words_ptr + (copied_row.to(gl.int64)[:, None] * units_per_row + copied_unit[None, :]) * UNIT
        )
        vector = first_vector + gl.arange(0, BATCH, gl.SliceLayout(1, copied_x))
        channel = gl.arange(0, wide, gl.SliceLayout(0, copied_x))
        at_x = x_ptr + vector.to(gl.int64)[:, None] * (units_per_row * places) + channel[None, :]
        group = gl.arange(0, groups, gl.SliceLayout(1, copied_scales))
        row = first_row + gl.arange(0, tall, gl.SliceLayout(0, copied_scales))
        at_scales = group[:, None] * rows + row[None, :]
        inside = (group[:, None] >= 0) & (row < rows)[None, :]
        for ahead in gl.static_range(STAGES - 1):
            _copy(
                at_words, at_x, scale_ptr, zero_point_ptr, at_scales, inside, word_tiles, x_tiles, scale_tiles,
                zero_tiles, begin + ahead, ahead, begin + ahead < end, rows, UNIT, UNITS_PER_GROUP, HAS_ZERO,
            )  # fmt: skip
        total = gl.full((tall, BATCH), 0.0, gl.float32, result)
        async_copy.wait_group(STAGES - 2)
        fence_async_shared()
        barrier()
        values = _numbers(
            word_tiles, scale_tiles, zero_tiles, 0, in_thread, operand, BITS, dtype, LOW, HAS_ZERO
        )
        for block in range(begin, end):
            stage = (block - begin) % STAGES
            product = warpgroup_mma(values, x_tiles.index(stage).permute((1, 0)), total, is_async=True)
            async_copy.wait_group(STAGES - 3)
            fence_async_shared()
            barrier()
            later = block + STAGES - 1
            _copy(
                at_words, at_x, scale_ptr, zero_point_ptr, at_scales, inside, word_tiles, x_tiles, scale_tiles,
                zero_tiles, later, (later - begin) % STAGES, later < end, rows, UNIT, UNITS_PER_GROUP, HAS_ZERO,
            )  # fmt: skip
            following = (stage + 1) % STAGES
            if AHEAD:
                unpacked = values
                if (
                    turns > 0
                ):  # always true: without a condition, the compiler waits for the matrix units before this
                    unpacked = _numbers(
                        word_tiles, scale_tiles, zero_tiles, following, in_thread, operand, BITS, dtype, LOW, HAS_ZERO
                    )  # fmt: skip
                total, values = warpgroup_mma_wait(0, (product, unpacked))
            else:  # if the registers do not suffice for two blocks
                total = warpgroup_mma_wait(0, (product,))
                values = _numbers(
                    word_tiles, scale_tiles, zero_tiles, following, in_thread, operand, BITS, dtype, LOW, HAS_ZERO
                )  # fmt: skip
        _finish(
            total, parts_ptr, counts_ptr, y_ptr, program, tile, first_row, first_vector, blocks, per_program, batch,
            rows, BATCH, tall, result, dtype,
        )  # fmt: skip
        async_copy.wait_group(0)
        barrier()
        at = tile * blocks + end


@gluon.jit
def _copy(
    at_words, at_x, scale_ptr, zero_point_ptr, at_scales, inside, word_tiles, x_tiles, scale_tiles, zero_tiles,
    block, stage, wanted, rows, UNIT: gl.constexpr, UNITS_PER_GROUP: gl.constexpr, HAS_ZERO: gl.constexpr,
):  # fmt: skip
    """Start to copy a block of words, x, scales and zero points."""
    for part in gl.static_range(UNIT):
        pointer = at_words + (block * UNITS * UNIT + part)
        known = gl.full(pointer.shape, 1, gl.int1, pointer.type.layout) & wanted
        async_copy.async_copy_global_to_shared(word_tiles.index(stage * UNIT + part), pointer, known)
    pointer = at_x + block * at_x.shape[1]
    known = gl.full(pointer.shape, 1, gl.int1, pointer.type.layout) & wanted
    async_copy.async_copy_global_to_shared(x_tiles.index(stage), pointer, known)
    first = block * UNITS // UNITS_PER_GROUP * rows
    async_copy.async_copy_global_to_shared(
        scale_tiles.index(stage), scale_ptr + (first + at_scales), inside & wanted
    )
    if HAS_ZERO:
        async_copy.async_copy_global_to_shared(
            zero_tiles.index(stage), zero_point_ptr + (first + at_scales), inside & wanted
        )
    async_copy.commit_group()


@gluon.jit
def _finish(
    total, parts_ptr, counts_ptr, y_ptr, program, tile, first_row, first_vector, blocks, per_program, batch, rows,
    BATCH: gl.constexpr, TALL: gl.constexpr, RESULT: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """Write a tile, or one program's part of it; the last program adds up the parts.

    A program has room for two parts: that of its first tile, and that of its last one.
    """
    head = tile * blocks // per_program
    count = ((tile + 1) * blocks - 1) // per_program - head + 1
    row = gl.arange(0, TALL, gl.SliceLayout(1, RESULT))
    sample = gl.arange(0, BATCH, gl.SliceLayout(0, RESULT))
    inside = sample[None, :] * TALL + row[:, None]
    row += first_row
    sample += first_vector
    at_y = y_ptr + (sample[None, :] * rows + row[:, None])
    kept = (row < rows)[:, None] & (sample < batch)[None, :]
    if count == 1:
        gl.store(at_y, total.to(DTYPE), mask=kept)
    else:
        place = 2 * program + (program * per_program // blocks != tile).to(gl.int32)
        gl.store(parts_ptr + place * (TALL * BATCH) + inside, total)
        barrier()
        if gl.atomic_add(counts_ptr + tile, 1) == count - 1:
            total = gl.full((TALL, BATCH), 0.0, gl.float32, RESULT)
            for part in range(head, head + count):
                place = 2 * part + (part * per_program // blocks != tile).to(gl.int32)
                total += gl.load(parts_ptr + place * (TALL * BATCH) + inside, cache_modifier=".cg")
            gl.store(at_y, total.to(DTYPE), mask=kept)
            gl.store(counts_ptr + tile, 0)
