"""compressed-tensors with our packing into 32-bit words, both ways. A pytest plugin."""

from __future__ import annotations

from typing import Any

import compressed_tensors
import compressed_tensors.compressors.quantized_compressors.pack_quantized as theirs
import torch
from torch import Tensor

from benchmarks.peers.tests.substitution import Recorder, replace_everywhere
from sparsebit.llm.formats.format import words
from sparsebit.numerics.packing import pack_bits, unpack_bits

RECORDER = Recorder()
THEIR_PACK, THEIR_UNPACK = theirs.pack_to_int32, theirs.unpack_from_int32


@RECORDER.count
def pack_to_int32(value: Tensor, num_bits: int, packed_dim: int = 1) -> Tensor:
    if value.dtype is not torch.int8:
        raise ValueError("Tensor must be quantized to torch.int8 before packing")
    rows = value if packed_dim == 1 else value.T
    packed = words(pack_bits((rows.to(torch.int16) + 2 ** (num_bits - 1)).to(torch.uint8), num_bits))
    return packed if packed_dim == 1 else packed.T.contiguous()


@RECORDER.count
def unpack_from_int32(value: Tensor, num_bits: int, shape: Any, packed_dim: int = 1) -> Tensor:
    rows = (value if packed_dim == 1 else value.T).contiguous().view(torch.uint8)
    codes = unpack_bits(rows, num_bits, shape[1] if packed_dim == 1 else shape[0])
    values = (codes.to(torch.int16) - 2 ** (num_bits - 1)).to(torch.int8)
    return values if packed_dim == 1 else values.T.contiguous()


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(RECORDER)
    replace_everywhere(compressed_tensors.__name__, THEIR_PACK, pack_to_int32)
    replace_everywhere(compressed_tensors.__name__, THEIR_UNPACK, unpack_from_int32)
