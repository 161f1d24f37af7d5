"""A Hopper kernel for up to 16 vectors, and weights that stay packed in 2 or 4 bits.

Import only if Triton is installed. Unpacking decides the time of so few vectors, so nothing is computed for each value
but the number itself: offsets and scales are applied to products. Weights are packed as in ``packed_matmul_triton``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, no-any-return"

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from sparsebit.kernels.packed_warpgroup_gluon import copy, finish
from sparsebit.kernels.packed_warpgroup_unpack import per_row

PAIRS = gl.constexpr(16)  # of the 32 values that a thread unpacks of a row


@triton.constexpr_function
def _write_assembly(bits: int, is_float16: bool) -> str:
    """PTX that unpacks 32 values to 16 pairs, as numbers ``value + offset``.

    A value and the one half a word behind it are set into the mantissas of two powers of two with the bits ``magic``,
    by one instruction: (word & mask) | magic.
    """
    magic = 0x64006400 if is_float16 else 0x43004300
    mask = ((1 << bits) - 1) * 0x10001
    of_word = PAIRS.value // bits
    lines = [".reg .b32 a;"]
    for pair in range(PAIRS.value):
        word, shift = PAIRS.value + 2 * (pair // of_word), pair % of_word * bits
        lines.append(f"shr.u32 a, ${word}, {shift}; lop3.b32 ${pair}, a, 0x{mask:X}, 0x{magic:X}, 0xEA;")
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def _registers(bits: int) -> str:
    return ",".join(["=&r"] * PAIRS.value + ["r"] * (2 * bits))


@triton.constexpr_function
def _results(dtype: gl.dtype) -> tuple[gl.dtype, ...]:
    return (dtype,) * PAIRS.value


@triton.constexpr_function
def _rows(warps: int, repeats: int) -> tuple[list[int], list[int]]:
    """The rows of a thread besides its first one, and of the warps."""
    of_repeats = [16 * warps << i for i in range(repeats.bit_length() - 1)]
    return [8, *of_repeats], [16 << i for i in range(warps.bit_length() - 1)]


@triton.constexpr_function
def _words_layout(warps: int, repeats: int, bits: int, groups: int) -> gl.DistributedLinearLayout:
    """[rows, words]: those of a block, for the four threads that share a row.

    A thread reads neighbouring words. If there are several groups, each of them is divided among the four threads.
    """
    of_thread, of_warps = _rows(warps, repeats)
    own, others = (1, bits) if groups == 1 else (4, 1)
    return gl.DistributedLinearLayout(
        [*([0, own << i] for i in range(bits.bit_length() - 1)), *([row, 0] for row in of_thread)],
        [[0, others], [0, 2 * others], [1, 0], [2, 0], [4, 0]],
        [[row, 0] for row in of_warps],
        [],
        [16 * warps * repeats, 4 * bits],
    )


@triton.constexpr_function
def _pairs_layout(warps: int, repeats: int) -> gl.DistributedLinearLayout:
    """[rows, 4 threads, 2 values]."""
    of_thread, of_warps = _rows(warps, repeats)
    return gl.DistributedLinearLayout(
        [[0, 0, 1], *([row, 0, 0] for row in of_thread)],
        [[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[row, 0, 0] for row in of_warps],
        [],
        [16 * warps * repeats, 4, 2],
    )


@triton.constexpr_function
def _x_layout(warps: int, bits: int, groups: int, vectors: int) -> gl.DistributedLinearLayout:
    """[vectors, channels]: the channels of a thread's words in a group, in all warps."""
    of_word, size = 32 // bits, 128 // groups
    own = [1 << i for i in range(of_word.bit_length() - 1)]
    if groups == 1:
        own, others = [1, 2, 4, 8, 16], 32
    else:
        own += [4 * of_word << i for i in range((size // (4 * of_word)).bit_length() - 1)]
        others = of_word
    return gl.DistributedLinearLayout(
        [*([0, channel] for channel in own), *([[8, 0]] if vectors == 16 else [])],
        [[0, others], [0, 2 * others], [1, 0], [2, 0], [4, 0]],
        [[0, 0]] * (warps.bit_length() - 1),
        [],
        [vectors, size],
    )


@gluon.jit
def _joined(values, FIRST: gl.constexpr, COUNT: gl.constexpr):
    """Tensors in one, with an axis of two for each bit of their index, the lowest one first."""
    if COUNT == 1:
        return values[FIRST]
    else:
        half: gl.constexpr = COUNT // 2
        return gl.join(_joined(values, FIRST, half), _joined(values, FIRST + half, half))


@gluon.jit
def _repeated(values, TIMES: gl.constexpr):
    """A tensor [rows, vectors] so many times, a power of two."""
    if TIMES == 1:
        return values
    else:
        twice = gl.permute(gl.join(values, values), (2, 0, 1))
        return _repeated(gl.reshape(twice, (2 * values.shape[0], values.shape[1])), TIMES // 2)


@gluon.jit
def _both(word, LAYOUT: gl.constexpr):
    """A word for both values of a pair: [rows, 4] as [rows, 4, 2]."""
    held = gl.convert_layout(word, gl.SliceLayout(2, LAYOUT), assert_trivial=True)
    rows: gl.constexpr = word.shape[0]
    return gl.broadcast(gl.expand_dims(held, 2), gl.full((rows, 4, 2), 0, word.dtype, LAYOUT))[0]


@gluon.jit
def _unpack(tile, REPEATS: gl.constexpr, BITS: gl.constexpr, GROUPS: gl.constexpr, DTYPE: gl.constexpr):
    """A block of numbers, as a tensor [rows, 4 threads, 2 values] for each of a thread's pairs."""
    warps: gl.constexpr = gl.num_warps()
    rows: gl.constexpr = 16 * warps * REPEATS
    layout: gl.constexpr = _pairs_layout(warps, REPEATS)
    words = tile.load(_words_layout(warps, REPEATS, BITS, GROUPS))
    if GROUPS > 1:
        words = gl.permute(gl.reshape(words, (rows, BITS, 4)), (0, 2, 1))
    if BITS == 4:
        even, odd = gl.split(gl.reshape(words, (rows, 4, 2, 2)))
        w0, w2 = gl.split(even)
        w1, w3 = gl.split(odd)
        given = [_both(w0, layout), _both(w1, layout), _both(w2, layout), _both(w3, layout)]
    else:
        w0, w1 = gl.split(gl.reshape(words, (rows, 4, 2)))
        given = [_both(w0, layout), _both(w1, layout)]
    code: gl.constexpr = _write_assembly(BITS, gl.float16 == DTYPE)
    return gl.inline_asm_elementwise(code, _registers(BITS), given, _results(DTYPE), True, 2)


@gluon.jit
def _of_group(values, GROUP: gl.constexpr, GROUPS: gl.constexpr, OPERAND: gl.constexpr):
    """The numbers of one group [rows, channels], in the order of pairs, threads, and values of a pair."""
    pairs: gl.constexpr = PAIRS // GROUPS
    joined = _joined(values, GROUP * pairs, pairs)
    if GROUPS == 1:
        ordered = gl.permute(joined, (0, 6, 5, 4, 3, 1, 2))
    elif GROUPS == 2:
        ordered = gl.permute(joined, (0, 5, 4, 3, 1, 2))
    else:
        ordered = gl.permute(joined, (0, 4, 3, 1, 2))
    return gl.convert_layout(gl.reshape(ordered, (joined.shape[0], 8 * pairs)), OPERAND, assert_trivial=True)


@gluon.jit
def _read_x(tile, GROUP: gl.constexpr, GROUPS: gl.constexpr, BITS: gl.constexpr, OPERAND: gl.constexpr):
    """The channels of one group of x in the same order, [channels, vectors]."""
    size: gl.constexpr = 8 * PAIRS // GROUPS
    vectors: gl.constexpr = tile.shape[0]
    apart: gl.constexpr = PAIRS // BITS  # channels between the values of a pair
    x = tile.slice(GROUP * size, size, dim=1).load(_x_layout(gl.num_warps(), BITS, GROUPS, vectors))
    if GROUPS == 1:
        x = gl.permute(gl.reshape(x, (vectors, 4, PAIRS // apart, 2, apart)), (0, 2, 4, 1, 3))
    else:
        x = gl.permute(gl.reshape(x, (vectors, size // (8 * apart), 4, 2, apart)), (0, 1, 4, 2, 3))
    return gl.convert_layout(gl.permute(gl.reshape(x, (vectors, size)), (1, 0)), OPERAND, assert_trivial=True)


@gluon.jit
def _copy_blocks(
    x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready, free, start, count, blocks, across,
    BITS: gl.constexpr, GROUP: gl.constexpr, GROUPS: gl.constexpr, HAS_ZERO: gl.constexpr,
):  # fmt: skip
    """What one warp does: copy blocks as soon as there is room for them."""
    tile = start // blocks
    block = start - tile * blocks
    row = tile // across * word_tiles.shape[1]
    vector = tile % across * x_tiles.shape[1]
    stages: gl.constexpr = word_tiles.shape[0]
    for at in range(0, count):
        stage = at % stages
        mbarrier.wait(free.index(stage), at // stages & 1 ^ 1)
        block, row, vector = copy(
            x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready,
            stage, True, block, row, vector, blocks, across, BITS, GROUP, x_tiles.shape[2], GROUPS, HAS_ZERO,
        )  # fmt: skip


@gluon.jit
def _multiply_blocks(
    word_tiles, x_tiles, scale_tiles, zero_tiles, ready, free, parts_ptr, counts_ptr, y_ptr, start, count, blocks,
    program, per_program, across, batch, rows,
    LOW: gl.constexpr, BITS: gl.constexpr, HAS_ZERO: gl.constexpr, GROUPS: gl.constexpr, REPEATS: gl.constexpr,
):  # fmt: skip
    """What the other warps do: multiply blocks as they arrive."""
    warps: gl.constexpr = gl.num_warps()
    stages: gl.constexpr = word_tiles.shape[0]
    tall: gl.constexpr = word_tiles.shape[1]
    vectors: gl.constexpr = x_tiles.shape[1]
    dtype: gl.constexpr = x_tiles.dtype
    raised: gl.constexpr = 1024 if gl.float16 == dtype else 128
    result: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])
    by_row: gl.constexpr = gl.SliceLayout(1, result)
    left: gl.constexpr = gl.DotOperandLayout(0, result, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, result, 2)
    ones = gl.full((16 * warps, x_tiles.shape[2] // GROUPS), 1.0, dtype, left)
    nothing = gl.full((tall, vectors), 0.0, gl.float32, result)
    at = 0
    while at < count:
        tile = (start + at) // blocks
        end = gl.minimum(count, (tile + 1) * blocks - start)
        total = nothing
        for block in range(at, end):
            stage = block % stages
            mbarrier.wait(ready.index(stage), block // stages & 1)
            values = _unpack(word_tiles.index(stage), REPEATS, BITS, GROUPS, dtype)
            for group in gl.static_range(GROUPS):
                here = _read_x(x_tiles.index(stage), group, GROUPS, BITS, right)
                held = stage * GROUPS + group
                offset = gl.full((tall,), raised - LOW, gl.float32, by_row)
                if HAS_ZERO:
                    offset += per_row(zero_tiles.index(held), warps, REPEATS, by_row).to(gl.float32)
                scale = per_row(scale_tiles.index(held), warps, REPEATS, by_row).to(gl.float32)
                if group == GROUPS - 1:
                    mbarrier.arrive(free.index(stage), count=1)
                of_x = mma_v2(ones, here, gl.full((16 * warps, vectors), 0.0, gl.float32, result))
                of_x = gl.convert_layout(_repeated(of_x, REPEATS), result, assert_trivial=True)
                product = mma_v2(_of_group(values, group, GROUPS, left), here, nothing)
                total += (product - of_x * gl.expand_dims(offset, 1)) * gl.expand_dims(scale, 1)
        finish(
            total,
            parts_ptr,
            counts_ptr,
            y_ptr,
            program,
            tile,
            blocks,
            per_program,
            across,
            batch,
            rows,
            REPEATS,
        )
        at = end


@gluon.jit(do_not_specialize=["batch", "per_program", "across"])
def multiply_few(
    x, words, scales, zeros, parts_ptr, counts_ptr, y_ptr, batch, rows, channels, per_program, across,
    LOW: gl.constexpr, BITS: gl.constexpr, HAS_ZERO: gl.constexpr, GROUP: gl.constexpr, BLOCK: gl.constexpr,
    GROUPS: gl.constexpr, VECTORS: gl.constexpr, REPEATS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """``x @ weight.T`` for up to 16 vectors, with the arguments of ``packed_warpgroup_gluon.multiply``."""
    gl.static_assert(BLOCK == 128 and VECTORS <= 16 and GROUPS <= BITS)
    tall: gl.constexpr = 16 * gl.num_warps() * REPEATS
    word_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, tall, 4 * BITS], words.layout)
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, VECTORS, BLOCK], x.layout)
    scale_tiles = gl.allocate_shared_memory(scales.dtype, [STAGES * GROUPS, 1, tall], scales.layout)
    zero_tiles = scale_tiles
    if HAS_ZERO:
        zero_tiles = gl.allocate_shared_memory(zeros.dtype, [STAGES * GROUPS, 1, tall], zeros.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    blocks = gl.cdiv(channels, BLOCK)
    program = gl.num_programs(0) - 1 - gl.program_id(0)  # as in packed_warpgroup_gluon
    start = program * per_program
    count = gl.minimum(per_program, gl.cdiv(rows, tall) * across * blocks - start)
    gl.warp_specialize(
        [
            (
                _multiply_blocks,
                (
                    word_tiles, x_tiles, scale_tiles, zero_tiles, ready, free, parts_ptr, counts_ptr, y_ptr, start,
                    count, blocks, program, per_program, across, batch, rows, LOW, BITS, HAS_ZERO, GROUPS,
                    REPEATS,
                ),
            ),
            (
                _copy_blocks,
                (
                    x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready, free, start, count,
                    blocks, across, BITS, GROUP, GROUPS, HAS_ZERO,
                ),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip
