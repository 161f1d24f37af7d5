"""ONNX Runtime's quantizer with our arithmetic: choosing scales, quantizing arrays, packing 2, 4 and 8 bits.

A pytest plugin. What our types cannot express (a signed range without its lowest value and with a zero point, an
unsigned symmetric one, 8-bit floats) stays with the peer's own function and is not counted as ours.
"""

from __future__ import annotations

from typing import Any

import numpy
import onnxruntime.capi._pybind_state as native
import torch
from onnx import TensorProto
from onnxruntime.quantization import quant_utils

from benchmarks.peers.tests.substitution import Recorder, limit_ir_version, replace_everywhere
from sparsebit.llm.formats.matmul_nbits import block_weight
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.grid import choose_grid, choose_scale
from sparsebit.numerics.layout import to_rows
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import pack_bits

RECORDER = Recorder()
THEIR_SCALE, THEIR_QUANTIZE, THEIR_PACK = (
    quant_utils.compute_scale_zp,
    quant_utils.quantize_nparray,
    quant_utils.pack_bytes_to_4bit,
)
TYPES = {
    TensorProto.INT8: CodeType("int", 8),
    TensorProto.UINT8: CodeType("uint", 8),
    TensorProto.INT16: CodeType("int", 16),
    TensorProto.UINT16: CodeType("uint", 16),
    TensorProto.INT4: CodeType("int", 4),
    TensorProto.UINT4: CodeType("uint", 4),
}


def compute_scale_zp(
    rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False, min_real_range: float | None = None
) -> list[Any]:
    low, high = int(qmin), int(qmax)
    levels = high - low + 1
    bits = levels.bit_length() - (levels & (levels - 1) == 0)
    full = levels == 2**bits and 2 <= bits <= 16
    if min_real_range is not None:
        rmax = numpy.maximum(
            rmax, numpy.minimum(rmin, 0).astype(rmin.dtype) + rmin.dtype.type(min_real_range)
        )
    if symmetric and low == -high and 2 <= bits <= 16:
        return _scale(rmin, rmax, CodeType("int", bits), 0, qmin)
    if not symmetric and full:
        return _scale(rmin, rmax, CodeType("uint", bits), low, qmin)
    return THEIR_SCALE(rmin, rmax, qmin, qmax, symmetric, min_real_range)


@RECORDER.count
def _scale(rmin: Any, rmax: Any, code: CodeType, low: int, like: Any) -> list[Any]:
    ends = (torch.from_numpy(numpy.asarray(end).reshape(1).copy()) for end in (rmin, rmax))
    scale, zero_point = choose_scale(*ends, code)
    shape = numpy.asarray(rmin).shape
    return [
        (zero_point.numpy() + low).astype(like.dtype).reshape(shape),
        scale.numpy().astype(rmax.dtype).reshape(shape),
    ]


def quantize_nparray(
    qType: Any, arr: Any, scale: Any, zero_point: Any, low: Any = None, high: Any = None
) -> Any:
    if qType not in TYPES or numpy.size(scale) != 1 or numpy.asarray(arr).size == 0:
        return THEIR_QUANTIZE(qType, arr, scale, zero_point, low, high)
    return _quantize(qType, numpy.asarray(arr), scale, zero_point, low, high)


@RECORDER.count
def _quantize(kind: Any, array: Any, scale: Any, zero_point: Any, low: Any, high: Any) -> Any:
    one = (
        torch.as_tensor(numpy.asarray(value, dtype=numpy.float32).reshape(1)) for value in (scale, zero_point)
    )
    codes = Grid(*one, TYPES[kind]).codes(torch.from_numpy(array.astype(numpy.float32)))
    made = codes.numpy().astype(quant_utils.ONNX_TYPE_TO_NP_TYPE[kind])
    return made if low is None and high is None else numpy.clip(made, low, high)


@RECORDER.count
def pack_bytes_to_4bit(src_8bit: Any) -> bytes:
    values = numpy.frombuffer(bytes(src_8bit), dtype=numpy.uint8) & 15
    return pack_bits(torch.from_numpy(values), 4).numpy().tobytes()


def quantize_matmul(bits: int) -> Any:
    """Blocks of one weight as MatMulNBits reads them, written into the arrays that are given."""

    @RECORDER.count
    def quantize(
        packed: Any,
        weight: Any,
        scales: Any,
        zero_points: Any,
        size: int,
        columns: int,
        rows: int,
        symmetric: bool,
    ) -> None:
        matrix = torch.from_numpy(numpy.ascontiguousarray(weight.T.astype(numpy.float32)))
        # Some callers have padded already.
        matrix = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % size))
        layout = Layout(kind="group", group_size=size)
        lo, hi = to_rows(matrix, layout).aminmax(dim=1)
        grid = choose_grid(lo, hi, CodeType("full" if symmetric else "uint", bits), layout)
        made = block_weight(PackedTensor.of(matrix, grid))
        packed[:] = made.values.numpy().reshape(packed.shape)
        scales[:] = made.scales.numpy().reshape(scales.shape).astype(scales.dtype)
        if made.zero_points is not None:
            given = made.zero_points.numpy().reshape(zero_points.shape)
            # Bits of the last byte that no block has: left as they are.
            rest = -made.scales.shape[1] * bits % 8
            used = 255 >> rest
            zero_points[:, :-1] = given[:, :-1]
            zero_points[:, -1] = (given[:, -1] & used) | (zero_points[:, -1] & ~numpy.uint8(used))

    return quantize


def pytest_configure(config: Any) -> None:
    limit_ir_version()
    config.pluginmanager.register(RECORDER)
    replace_everywhere("onnxruntime.quantization", THEIR_SCALE, compute_scale_zp)
    replace_everywhere("onnxruntime.quantization", THEIR_QUANTIZE, quantize_nparray)
    replace_everywhere("onnxruntime.quantization", THEIR_PACK, pack_bytes_to_4bit)
    for bits in (2, 4, 8):
        name = f"quantize_matmul_{bits}bits"
        ours = quantize_matmul(bits)
        replace_everywhere("onnxruntime.quantization", getattr(native, name), ours)
        setattr(native, name, ours)
