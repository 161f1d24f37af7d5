"""The kernels in Triton's interpreter, without a GPU: ``TRITON_INTERPRET=1 python -m benchmarks.gpu.interpreted``.

Says nothing of speed. Half precision is checked in float16, as the interpreter rounds bfloat16 its own way, and the
pairs of 4-bit values, which are unpacked in assembly, by a stand-in.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.gpu import fake_quant as fake_quant_cases
from benchmarks.gpu import packed_matmul as packed_cases
from sparsebit.kernels import fake_quant, grouped, packed_matmul, packed_matmul_triton
from sparsebit.numerics import CodeType, Layout
from sparsebit.numerics.snapping import matrix_of, snap_tensor

SMALL = 4000  # numbers of a tensor: the interpreter runs program by program


def check_fake_quant() -> list[str]:
    """Forward and backward of single tensors, with scales that count as they are and by their magnitude."""
    wrong = []
    for case in fake_quant_cases.draw_cases(80, seed=7):
        case = dataclasses.replace(case, dtype=torch.float32)
        layout, code = fake_quant_cases.LAYOUTS[case.layout], CodeType.parse(case.code)
        if torch.Size(case.shape).numel() > SMALL:
            continue
        x, grad, scale, zero_point = case.make("cpu")
        matrix = matrix_of(x.shape, x.stride(), layout, scale.numel())
        if matrix is None:
            continue
        for magnitude in (False, True):
            signed = scale * torch.where(torch.arange(len(scale)) % 2 > 0, -1.0, 1.0) if magnitude else scale
            found = []
            for kernels in (True, False):
                leaves = [t.detach().clone().requires_grad_() for t in (x, signed, zero_point)]
                if kernels:
                    y = fake_quant._with_gradients(
                        *leaves, matrix, code.low, code.high, 0.25, None, magnitude
                    )
                else:
                    y = snap_tensor(*leaves, code, layout, 0.25, magnitude=magnitude)
                y.backward(grad)
                found.append([y, *(leaf.grad for leaf in leaves)])
            wrong += _differences(f"{case}, magnitude {magnitude}", *found)
    return wrong


def check_grouped() -> list[str]:
    """Weights together beside each alone: channels, one scale, groups, channels-last, and one that nothing reads."""
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
    """Each of the three ways to multiply, where it applies, beside the unpacked weight in float64."""
    packed_matmul_triton._unpack_pairs = _pairs
    wrong = []
    for case in packed_cases.draw_cases(60, seed=5):
        case = dataclasses.replace(
            case, rows=min(case.rows, 33), channels=min(case.channels, 384), dtype=torch.float16
        )
        x, packed, grid = case.make("cpu")
        zero_point = None if grid.code.symmetric else grid.zero_point.to(torch.int16)
        arguments = (x, packed, grid.scale, zero_point, grid.code.bits, grid.code.low)
        weight = grid.numbers(grid.unpack(packed, case.channels), torch.float64)
        ways = {"written": lambda a=arguments: F.linear(a[0], packed_matmul._write_numbers(*a))}
        if case.batch <= 3:
            ways["vector"] = lambda a=arguments: packed_matmul._multiply_vector(*a)
        if packed_matmul.fits_matrix_units(case.channels, grid.code.bits):
            ways["batch"] = lambda a=arguments: packed_matmul._multiply_batch(*a)
        expected = F.linear(x.double(), weight)
        for name, multiply in ways.items():
            error = float((multiply().double() - expected).norm() / expected.norm())
            if not error < 3e-3:  # also NaN
                wrong.append(f"{name} {case}: relative error {error:.3g}")
    return wrong


@triton.jit
def _one(words, j: tl.constexpr, dtype: tl.constexpr):
    return (((words >> (4 * j)) & 15) - 8).to(dtype)


@triton.jit
def _pairs(words, dtype: tl.constexpr):
    """Stands for ``packed_matmul_triton._unpack_pairs``."""
    v0, v1, v2, v3 = (
        _one(words, 0, dtype),
        _one(words, 1, dtype),
        _one(words, 2, dtype),
        _one(words, 3, dtype),
    )
    v4, v5, v6, v7 = (
        _one(words, 4, dtype),
        _one(words, 5, dtype),
        _one(words, 6, dtype),
        _one(words, 7, dtype),
    )
    return v0, v1, v2, v3, v4, v5, v6, v7


def _differences(what: str, found: list[Tensor], expected: list[Tensor]) -> list[str]:
    return [
        f"{what}, {index}: differs by {float((a - b).abs().max()):.3g} of {float(b.detach().abs().max()):.3g}"
        for index, (a, b) in enumerate(zip(found, expected, strict=True))
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(b.detach().abs().max()) + 1e-7)
    ]


CHECKS = {"fake_quant": check_fake_quant, "grouped": check_grouped, "packed_matmul": check_packed_matmul}


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
