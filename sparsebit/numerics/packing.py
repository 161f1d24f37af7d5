"""Codes as bit streams: little-endian, dense, along the last axis.

Code i of a row takes bits ``i * bits`` to ``(i + 1) * bits - 1`` of the row, counted from the lowest bit of the first
byte. So 3-bit codes run across bytes without gaps, and only the last byte of a row may have bits that are not used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., n] from 0 to 2**bits - 1 as bytes [..., ceil(n * bits / 8)].

    Example:
        >>> pack_bits(torch.tensor([1, 2, 3], dtype=torch.uint8), 4)
        tensor([33,  3], dtype=torch.uint8)
    """
    per_block, length = 8 // math.gcd(8, bits), packed_length(codes.shape[-1], bits)
    wide = codes.to(torch.uint8 if bits <= 8 else torch.int32)
    if bits == 8:
        return wide.contiguous()
    wide = torch.nn.functional.pad(wide, (0, -codes.shape[-1] % per_block))
    blocks = wide.unflatten(-1, (wide.shape[-1] // per_block, per_block))
    made = []
    for byte in range(bits // math.gcd(8, bits)):
        total = torch.zeros_like(blocks[..., 0])
        for index in range(8 * byte // bits, min(per_block, -(-8 * (byte + 1) // bits))):
            total |= _shift(blocks[..., index], index * bits - 8 * byte)
        made.append((total & 255).to(torch.uint8))
    return torch.stack(made, -1).flatten(-2)[..., :length].contiguous()


def unpack_bits(packed: Tensor, bits: int, length: int) -> Tensor:
    """The inverse: bytes [..., m] as codes [..., length], in uint8 up to 8 bits and in int32 beyond.

    Example:
        >>> unpack_bits(torch.tensor([33, 3], dtype=torch.uint8), 4, 3)
        tensor([1, 2, 3], dtype=torch.uint8)
    """
    if bits == 8:
        return packed[..., :length]
    per_block, size = 8 // math.gcd(8, bits), bits // math.gcd(8, bits)
    packed = torch.nn.functional.pad(packed, (0, -packed.shape[-1] % size))
    blocks = packed.unflatten(-1, (packed.shape[-1] // size, size))
    if bits > 8:
        blocks = blocks.to(torch.int32)
    made = []
    for index in range(per_block):
        total = torch.zeros_like(blocks[..., 0])
        for byte in range(index * bits // 8, min(size, -(-(index + 1) * bits // 8))):
            total |= _shift(blocks[..., byte], 8 * byte - index * bits)
        made.append(total & (2**bits - 1))
    return torch.stack(made, -1).flatten(-2)[..., :length]


def packed_length(length: int, bits: int) -> int:
    """The number of bytes in a row of codes.

    Example:
        >>> packed_length(10, 3)
        4
    """
    return -(-length * bits // 8)


def _shift(values: Tensor, left: int) -> Tensor:
    """Bits shifted left, or right if ``left`` is negative; bits that leave the byte are dropped."""
    return values << left if left >= 0 else values >> -left
