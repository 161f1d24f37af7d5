"""Blocks of 32 weights, decoded one by one by their definition."""

from __future__ import annotations

import struct

import pytest
import torch

from sparsebit.llm.formats.gguf.blocks import block_type, pack_blocks
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.packed import PackedTensor


def packed(code: str, *, size: int = 32, columns: int = 64) -> PackedTensor:
    generator = torch.Generator().manual_seed(0)
    kind = CodeType.parse(code)
    count = 4 * columns // size
    # 7 bits, so scale times zero is fp16 too.
    scale = (torch.rand(count, generator=generator) * 64 + 1).round() / 256
    if kind.kind == "full":
        scale[::2] *= -1
    zero_point = torch.zeros(count) if kind.symmetric else torch.arange(count) % (kind.high + 1.0)
    layout = Layout(kind="group", axes=(0,), input_axis=1, group_size=size)
    grid = Grid(scale.half(), zero_point, kind, layout)
    return PackedTensor.of(torch.randn(4, columns, generator=generator), grid)


def decoded(row: bytes, kind: str) -> list[float]:
    length = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    found: list[float] = []
    for start in range(0, len(row), length):
        block = row[start : start + length]
        (d,) = struct.unpack("<e", block[:2])
        if kind == "Q8_0":
            found += [d * value for value in struct.unpack("<32b", block[2:])]
            continue
        m = struct.unpack("<e", block[2:4])[0] if kind == "Q4_1" else -8 * d
        nibbles = [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]
        found += [d * value + m for value in nibbles]
    return found


@pytest.mark.parametrize(
    ("code", "size", "kind"),
    [
        ("int4_full", 32, "Q4_0"),
        ("int4", 64, "Q4_0"),
        ("int3_full", 32, "Q4_0"),
        ("uint4", 32, "Q4_1"),
        ("uint2", 64, "Q4_1"),
        ("int8", 32, "Q8_0"),
    ],
)
def test_blocks_hold_the_numbers(code: str, size: int, kind: str) -> None:
    held = packed(code, size=size)
    assert block_type(held) == kind
    for row, wanted in zip(pack_blocks(held, kind), held.numbers(), strict=True):
        assert decoded(bytes(row.tolist()), kind) == wanted.tolist()


def test_why_there_is_no_block() -> None:
    assert block_type(packed("uint8")) == "it has no type of block for uint8"
    held = packed("int4_full")
    wide = PackedTensor(
        held.bits,
        Grid(held.grid.scale.float() / 3, held.grid.zero_point, held.grid.code, held.grid.layout),
        held.shape,
        held.dtype,
    )
    assert block_type(wide) == "its scales are fp16"
