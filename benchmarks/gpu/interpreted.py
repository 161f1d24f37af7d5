"""The kernels in Triton's interpreter, without a GPU: ``TRITON_INTERPRET=1 python -m benchmarks.gpu.interpreted``.

Says nothing of speed. Half precision is checked in float16, as the interpreter rounds bfloat16 its own way. Stand-ins
take the place of what the interpreter cannot do: fused multiply-adds, and the assembly that takes packed weights apart.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy
import torch
import torch.nn.functional as F
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from benchmarks.gpu import fake_quant as fake_quant_cases
from benchmarks.gpu import packed_matmul as packed_cases
from sparsebit.config import TensorSpec
from sparsebit.kernels import fake_quant, grouped, int8_vectors, packed_matmul, packed_matmul_triton
from sparsebit.numerics import CodeType, Layout
from sparsebit.numerics import int8_vectors as references
from sparsebit.numerics.grid import SCALE_OF_ZEROS
from sparsebit.numerics.snapping import matrix_of, snap_tensor
from sparsebit.quantization.quantizers import PACT

SMALL = 4000  # numbers of a tensor: the interpreter runs program by program


def check_fake_quant() -> list[str]:
    """Forward and backward of single tensors, with scales that count by their magnitude, and behind a ReLU."""
    interpreter.InterpreterBuilder.create_fma = _multiply_add
    wrong = _wrong_quotients()
    for case in fake_quant_cases.draw_cases(80, seed=7):
        case = dataclasses.replace(case, dtype=torch.float32)
        layout, code = fake_quant_cases.LAYOUTS[case.layout], CodeType.parse(case.code)
        if torch.Size(case.shape).numel() > SMALL:
            continue
        x, grad, scale, zero_point = case.make("cpu")
        matrix = matrix_of(x.shape, x.stride(), layout, scale.numel())
        if matrix is None:
            continue
        for magnitude, rectify in ((False, False), (True, False), (False, True), (True, True)):
            signed = scale * torch.where(torch.arange(len(scale)) % 2 > 0, -1.0, 1.0) if magnitude else scale
            found = []
            for kernels in (True, False):
                leaves = [t.detach().clone().requires_grad_() for t in (x, signed, zero_point)]
                if kernels:
                    kernels_of_it = fake_quant.snap_kernels(
                        matrix, x.dtype, x.get_device(), code.low, code.high, magnitude, rectify
                    )
                    y = fake_quant.snap_with(kernels_of_it, *leaves, 0.25)
                else:
                    given = leaves[0].relu() if rectify else leaves[0]
                    y = snap_tensor(given, *leaves[1:], code, layout, 0.25, magnitude=magnitude)
                y.backward(grad)
                found.append([y, *(leaf.grad for leaf in leaves)])
            wrong += _differences(f"{case}, magnitude {magnitude}, rectify {rectify}", *found)
    return wrong


def check_clip() -> list[str]:
    """PACT's clip beside its composition of torch's operators: numbers on both ends, and NaN."""
    interpreter.InterpreterBuilder.create_fma = _multiply_add
    wrong = []
    for case in fake_quant_cases.draw_cases(60, seed=9):
        if torch.Size(case.shape).numel() > SMALL or case.dtype == torch.bfloat16:
            continue
        for two_sided, start in ((False, 6.0), (True, 1.7)):
            quantizer = PACT("it", "A", TensorSpec(quantizer="pact", bits=4, symmetric=two_sided))
            alpha = quantizer.alpha
            alpha.data.fill_(start)
            x, grad, *_ = case.make("cpu")
            # On the ends.
            x.masked_fill_((x - 1).abs() < 0.5, start).masked_fill_((x + 1).abs() < 0.5, -start)
            x.masked_fill_(x == x.max(), float("nan"))
            found = []
            for kernels in (True, False):
                leaf = x.detach().clone().requires_grad_()
                alpha.grad = None
                if kernels:
                    scale, zero_point = quantizer.scale_and_zero_point()
                    matrix = matrix_of(x.shape, x.stride(), Layout(), 1)
                    if matrix is None:
                        break
                    low = -quantizer.code.high if two_sided else quantizer.code.low
                    prepared = fake_quant.snap_kernels(matrix, x.dtype, -1, low, quantizer.code.high, False)
                    y = fake_quant.clip_with(prepared, leaf, alpha, scale, zero_point, two_sided)
                else:
                    y = quantizer.snap(leaf)
                y.backward(grad)
                found.append([y.nan_to_num(), leaf.grad, alpha.grad])
            if found:
                wrong += _differences(f"{case}, two_sided {two_sided}", *found)
    return wrong


def _wrong_quotients() -> list[str]:
    """Quotients on every side of a step of the grid, where one that is rounded wrongly shows."""
    torch.manual_seed(1)
    scale = torch.cat([torch.rand(30) * 2.0 ** torch.randint(-30, 30, (30,)), torch.tensor([2.0**-126, 1.5])])
    steps = torch.randint(-(2**21), 2**21, (200,)) + 0.5 * torch.randint(0, 2, (200,))
    x = scale[:, None] * steps
    x = torch.cat([x, torch.nextafter(x, torch.zeros(())), torch.nextafter(x, torch.full((), 1e38))], 1)
    x[:, 0], x[:, 1], x[:, 2], x[:, 3] = float("inf"), -float("inf"), 3e38, float("nan")
    layout, zero_point = Layout(kind="channel"), torch.zeros_like(scale)
    matrix = matrix_of(x.shape, x.stride(), layout, len(scale))
    assert matrix is not None
    low, high = -(2**23), 2**23 - 1
    found = fake_quant.snap_kernels(matrix, x.dtype, -1, low, high, False).snap(x, scale, zero_point)
    expected = (x / scale[:, None]).round().clamp(low, high) * scale[:, None]
    same = (found == expected) | (found.isnan() & expected.isnan())
    return [
        f"{float(v)} / {float(s)}" for v, s in zip(x[~same], scale[:, None].expand_as(x)[~same], strict=True)
    ]


def check_grouped() -> list[str]:
    """Weights together beside each alone: channels, one scale, groups, channels-last, and one that nothing reads."""
    interpreter.InterpreterBuilder.create_fma = _multiply_add
    torch.manual_seed(0)
    code, wrong = CodeType("int", 4), []
    weights = [torch.randn(8, 4, 3, 3), torch.randn(5, 2000), torch.randn(40, 1, 3, 3), torch.randn(24, 32)]
    weights.append(torch.randn(16, 8, 3, 3).to(memory_format=torch.channels_last))
    channel = Layout(kind="channel")
    layouts = [channel, channel, Layout(), Layout(kind="group", group_size=16), channel]
    scales = [torch.rand(count) * 0.2 + 0.05 for count in (8, 5, 1, 48, 16)]
    members = []
    for weight, layout, scale in zip(weights, layouts, scales, strict=True):
        matrix = matrix_of(weight.shape, weight.stride(), layout, len(scale))
        assert matrix is not None
        members.append(grouped.Member(tuple(weight.shape), weight.stride(), matrix, code.low, code.high, 0.5))
    group = grouped.WeightGroup(members, torch.device("cpu"), magnitude=False)
    together, alone = ([t.clone().requires_grad_() for t in [*weights, *scales]] for _ in range(2))
    results = grouped.snap_group(group, together[:5], together[5:])
    gradients = [torch.randn_like(weight) for weight in weights]
    torch.autograd.backward(results[:4], gradients[:4])
    for index, (layout, gradient) in enumerate(zip(layouts, gradients, strict=True)):
        weight, scale = alone[index], alone[5 + index]
        y = snap_tensor(weight, scale, torch.zeros_like(scale), code, layout, 0.5)
        y.backward(gradient * (index < 4))
        own: list[Any] = [results[index], together[index].grad, together[5 + index].grad]
        wrong += _differences(f"weight {index}", own, [y, weight.grad, scale.grad])
    return wrong


def check_packed_matmul() -> list[str]:
    """Products of several vectors."""
    packed_matmul_triton._values, packed_matmul_triton._scaled_values = _values, _scaled_values
    wrong = []
    for case in packed_cases.draw_cases(45, seed=5):
        case = dataclasses.replace(case, rows=min(case.rows, 33))
        wrong += _wrong_products(case, packed_matmul._multiply)
    return wrong


def check_packed_pieces() -> list[str]:
    """Products of one and two vectors with the packed weight, and with parts of the unpacked one."""
    packed_matmul.IN_PARTS, packed_matmul.UNPACKED_BYTES = 1, 0  # 128 rows at once
    wrong = []
    for case in packed_cases.draw_cases(25, seed=6):
        case = dataclasses.replace(case, rows=min(case.rows, 33), batch=min(case.batch, 2))
        wrong += _wrong_products(case, packed_matmul._multiply_singly, packed_matmul._multiply_unpacked)
        if case.code.endswith("4"):
            wrong += _wrong_products(
                dataclasses.replace(case, group_size=8), packed_matmul._multiply_unpacked
            )
    return wrong


def check_int8_vectors() -> list[str]:
    """Vectors rounded to int8 and sums scaled again, beside torch's operators: every bit."""
    interpreter.InterpreterBuilder.create_fma = _multiply_add
    torch.manual_seed(0)
    wrong = []
    for vectors, width, dtype in ((0, 8, torch.float32), (3, 5, torch.float16), (5, 2100, torch.float32)):
        x = torch.randn(vectors, width).to(dtype)
        if vectors:
            x[0], x[1, 3], x[2, 0] = 0, float("nan"), -float("inf")
        sums = torch.randint(-(2**20), 2**20, (vectors, 2050), dtype=torch.int32)
        rows, bias = torch.rand(2050) / 2**15, torch.randn(2050).to(dtype)
        found, expected = int8_vectors.round_fused(x, SCALE_OF_ZEROS), references.round_vectors(x)
        known = expected[1].isfinite()
        if not torch.equal(found[0] * known, expected[0] * known) or not torch.equal(
            found[1].nan_to_num(-1), expected[1].nan_to_num(-1)
        ):
            wrong.append(f"rounding {vectors} vectors of {width}")
        for one in (bias, None):
            given = sums, rows, found[1], one, dtype
            if not torch.equal(
                int8_vectors.scale_fused(*given).nan_to_num(), references.scale_sums(*given).nan_to_num()
            ):
                wrong.append(f"sums of {vectors} vectors, bias {one is not None}")
    return wrong


def _wrong_products(case: packed_cases.Case, *ways: Callable[..., Tensor]) -> list[str]:
    """Ways to multiply beside the unpacked weight in float64."""
    channels, half = min(case.channels, 2048), torch.float16
    case = dataclasses.replace(case, channels=channels, dtype=half, scale_dtype=half)
    x, packed, grid = case.make("cpu")
    weight = grid.numbers(grid.unpack(packed, channels), torch.float64)
    expected, wrong = F.linear(x.double(), weight), []
    for multiply in ways:
        found = multiply(x, *packed_cases.kernel_arguments(packed, grid))
        error = float((found.double() - expected).norm() / expected.norm())
        if not error < 3e-3:  # also NaN
            wrong.append(f"{multiply.__name__} {case}: relative error {error:.3g}")
    return wrong


def _multiply_add(self: Any, x: Any, y: Any, z: Any) -> Any:
    """Stands for the interpreter's own, which rounds between multiplying and adding."""
    total = x.data.astype(numpy.float64) * y.data + z.data
    return interpreter.TensorHandle(total.astype(x.data.dtype), z.dtype.scalar)


def _values(w0: Any, w1: Any, w2: Any, BITS: int, DTYPE: Any) -> tuple[Any, ...]:
    """Stands for ``packed_matmul_triton._values``, which is written in assembly."""
    bits, words, found = (4 if BITS == 8 else BITS), (w0, w1, w2), []
    for bit in range(0, 96 if BITS == 3 else 32, int(bits)):
        value = (words[bit // 32] >> (bit % 32)) & ((1 << min(bits, 32 - bit % 32)) - 1)
        if bit % 32 + bits > 32:
            value = value | ((words[bit // 32 + 1] << (32 - bit % 32)) & ((1 << bits) - 1))
        found.append((value + 1024).to(tl.float16))
    return tuple(found)


def _scaled_values(
    w0: Any, w1: Any, w2: Any, even: Any, odd: Any, scale: Any, BITS: int, DTYPE: Any
) -> tuple[Any, ...]:
    """Stands for the function of that name, which is written in assembly."""
    raised = _values(w0, w1, w2, BITS, DTYPE)
    return tuple((value - (odd if place % 2 else even)) * scale for place, value in enumerate(raised))


def _differences(what: str, found: list[Tensor], expected: list[Tensor]) -> list[str]:
    return [
        f"{what}, {index}: differs by {float((a - b).abs().max()):.3g} of {float(b.detach().abs().max()):.3g}"
        for index, (a, b) in enumerate(zip(found, expected, strict=True))
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(b.detach().abs().max()) + 1e-7)
    ]


CHECKS = {
    "fake_quant": check_fake_quant,
    "clip": check_clip,
    "grouped": check_grouped,
    "packed_matmul": check_packed_matmul,
    "packed_pieces": check_packed_pieces,
    "int8_vectors": check_int8_vectors,
}


def main() -> None:
    """Run the checks that are named, or all of them; exit with 1 where something is wrong."""
    wrong = []
    for name in sys.argv[1:] or CHECKS:
        found = CHECKS[name]()
        print(f"{name}: {'right' if not found else f'{len(found)} wrong'}", *found[:5], sep="\n  ")
        wrong += found
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
