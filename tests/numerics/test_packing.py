"""Bit streams: what goes in comes out, in exactly as many bytes as it takes, little-endian."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.numerics.packing import pack_bits, packed_length, unpack_bits


def by_hand(codes: list[int], bits: int) -> list[int]:
    """The stream as one large integer, code i at bit i * bits, cut into bytes from the lowest."""
    total = sum(code << (index * bits) for index, code in enumerate(codes))
    return list(total.to_bytes(packed_length(len(codes), bits), "little"))


@given(st.integers(2, 16), st.data())
def test_the_stream_is_one_little_endian_integer(bits: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=40))
    packed = pack_bits(torch.tensor(codes, dtype=torch.int32), bits)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == by_hand(codes, bits)
    assert unpack_bits(packed, bits, len(codes)).tolist() == codes


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 0, 4), (2, 3, 17)])
def test_rows_are_packed_along_the_last_axis(bits: int, shape: tuple[int, ...]) -> None:
    codes = torch.randint(2**bits, shape, dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (*shape[:-1], packed_length(shape[-1], bits))
    assert torch.equal(unpack_bits(packed, bits, shape[-1]), codes)


def test_memory_that_is_not_contiguous() -> None:
    codes = torch.randint(16, (6, 10), dtype=torch.uint8).T
    assert torch.equal(unpack_bits(pack_bits(codes, 4), 4, 6), codes)
