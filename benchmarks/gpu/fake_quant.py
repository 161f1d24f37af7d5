"""Fused fake-quantization on the GPU: is it right, and how far is it from the memory floor?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from sparsebit.config import TensorSpec
from sparsebit.kernels.fake_quant import snap_fused
from sparsebit.numerics import CodeType, Layout, snapping
from sparsebit.numerics.layout import align, row_count
from sparsebit.numerics.snapping import snap, snap_plain
from sparsebit.quantization.quantizers import PACT

PASSES = 5  # forward: read x, write y; backward: read x and the gradient, write the gradient of x
LAYOUTS = {
    "tensor": Layout(),
    "channel 0": Layout(kind="channel", axes=(0,)),
    "channel 1": Layout(kind="channel", axes=(1,)),
    "group": Layout(kind="group", group_size=16),
    "token": Layout(kind="token"),
}


@dataclass(frozen=True)
class Case:
    """One tensor and one grid, drawn from a seed."""

    shape: tuple[int, ...]
    layout: str
    dtype: torch.dtype = torch.float32
    code: str = "int4"
    channels_last: bool = False
    factor: float | str = 0.25  # "tensor": the same number in a tensor
    seed: int = 0

    def make(self, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x, a gradient for y, scales and zero points."""
        drawn: dict[str, Any] = {
            "generator": torch.Generator(device).manual_seed(self.seed),
            "device": device,
        }
        x, grad = (torch.randn(self.shape, **drawn).to(self.dtype) for _ in range(2))
        if self.channels_last:  # as the layer behind it returns its gradient
            x, grad = (t.to(memory_format=torch.channels_last) for t in (x, grad))
        count = row_count(self.shape, LAYOUTS[self.layout])
        scale = torch.rand(count, **drawn) * 0.3 + 0.05
        code = CodeType.parse(self.code)
        if code.symmetric:
            return x, grad, scale, torch.zeros(count, device=device)
        return x, grad, scale, torch.randint(0, code.high, (count,), **drawn).float()


def draw_cases(count: int, seed: int) -> list[Case]:
    """Random shapes, layouts, dtypes and types of quantized values, odd sizes among them."""
    draw = random.Random(seed)
    cases = []
    for index in range(count):
        dims = draw.choice([1, 2, 3, 4, 4])
        layout = draw.choice([name for name in LAYOUTS if dims > 1 or name in ("tensor", "channel 0")])
        shape = [draw.choice([1, 2, 3, 5, 8, 17, 33, 64]) for _ in range(dims)]
        shape[-1] = draw.choice([1, 3, 7, 16, 49, 129, 256, 1000] + [4099] * (dims < 4))
        if layout == "group":
            shape[1] = 16 * draw.choice([1, 2, 5])
        cases.append(
            Case(
                tuple(shape),
                layout,
                draw.choice([torch.float32, torch.float16, torch.bfloat16]),
                draw.choice(["int2", "int4", "int8", "uint4", "uint8", "uint16"]),
                dims == 4 and draw.random() < 0.5,
                draw.choice([1.0, 0.25, "tensor"]),
                seed * 100_000 + index,
            )
        )
    return cases


def compare(case: Case, device: str, fused: Callable[..., Tensor | None] = snap_fused) -> str | None:
    """What differs between the kernels and the reference; None where nothing does, "not covered" where they pass."""
    x, grad, scale, zero_point = case.make(device)
    code, factor = CodeType.parse(case.code), case.factor
    given = torch.full((1,), 0.5, device=device) if isinstance(factor, str) else factor

    def run(snap_: Callable[..., Tensor | None]) -> list[Tensor] | None:
        leaves = [t.detach().clone().requires_grad_() for t in (x, scale, zero_point)]
        view, aligned = align(leaves[0], LAYOUTS[case.layout], *leaves[1:])
        aligned = tuple(t.reshape(1) if t.numel() == 1 else t for t in aligned)
        y = snap_(view, *aligned, given)
        if y is None:
            return None
        y = y.reshape(x.shape)
        y.backward(grad.to(y.dtype))
        return [y, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    got = run(lambda a, b, c, g: fused(a, b, c, code.low, code.high, g))
    if got is None:
        return "not covered"
    again = run(lambda a, b, c, g: fused(a, b, c, code.low, code.high, g))
    plain = run(lambda a, b, c, g: snap_plain(a, b, c, code, g))
    assert again is not None and plain is not None
    problems = []
    for name, a, b, c in zip(("y", "d/dx", "d/dscale", "d/dzero_point"), got, again, plain, strict=True):
        if not torch.equal(a, b):
            problems.append(f"{name} differs between two runs")
        if name in ("y", "d/dx"):
            if not torch.equal(a, c):
                problems.append(
                    f"{name}: {int((a != c).sum())} of {a.numel()} elements differ, {_first(a, c)}"
                )
            continue
        # Sums of up to millions of numbers: compared by their size against the sum of absolute terms.
        bound = 2e-5 * (c.abs().max() + 0.5 * (x.numel() / c.numel()) ** 0.5 * max(code.high, 1))
        if not bool(((a - c).abs() <= bound).all()):
            problems.append(f"{name}: off by {float((a - c).abs().max()):.3g}, allowed {float(bound):.3g}")
    return "; ".join(problems) or None


LOWERED = [
    Case((4, 24, 9, 9), "tensor", torch.bfloat16, "uint4", True),
    Case((4, 24, 9, 9), "tensor", torch.float16, "int8", False, "tensor"),
    Case((64, 1000), "tensor", torch.float32, "int4"),
    Case((33, 16, 3, 3), "channel 0", torch.bfloat16, "int4", True),
    Case((4, 24, 9, 9), "channel 1", torch.float32, "uint8", True),
    Case((5, 32, 7), "group", torch.bfloat16, "int2"),
]


def compare_lowered(case: Case, device: str, backend: str = "inductor") -> str | None:
    """What differs between the reference and what a compiler makes of the operator."""
    code = CodeType.parse(case.code)

    def compiled(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, factor: Any) -> Tensor:
        def run(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
            return snap(x, scale, zero_point, code, factor)

        torch._dynamo.reset()
        return torch.compile(run, backend=backend, fullgraph=True, dynamic=False)(x, scale, zero_point)

    return compare(case, device, compiled)


def _first(a: Tensor, b: Tensor) -> str:
    at = int((a != b).flatten().nonzero()[0])
    return f"first at {at}: {a.flatten()[at].item()} instead of {b.flatten()[at].item()}"


TIMED = {
    "activation 64x256x56x56 per tensor": Case((64, 256, 56, 56), "tensor"),
    "activation 64x256x56x56 per channel": Case((64, 256, 56, 56), "channel 1"),
    "channels-last 64x256x56x56 per channel": Case((64, 256, 56, 56), "channel 1", channels_last=True),
    "channels-last 64x256x56x56 per tensor": Case((64, 256, 56, 56), "tensor", channels_last=True),
    "weight 4096x4096 per channel": Case((4096, 4096), "channel 0"),
    "weight 4096x4096 groups of 16": Case((4096, 4096), "group"),
    "weight 512x512x3x3 per channel": Case((512, 512, 3, 3), "channel 0"),
    "weight 512x512x3x3 per tensor": Case((512, 512, 3, 3), "tensor"),
    "weight 64x64x3x3 per channel": Case((64, 64, 3, 3), "channel 0"),
}


def measure(copy_bytes_per_second: float, time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """Forward and backward, fused and plain, in microseconds, with the memory floor beside them.

    From a CUDA graph, which is the time of the kernels, and called one by one, which adds the work of the host.
    """
    for name, base in TIMED.items():
        for dtype in (torch.float32, torch.bfloat16):
            case = replace(base, dtype=dtype, factor=0.01)
            x, grad, scale, zero_point = case.make("cuda")
            code = CodeType.parse(case.code)
            floor = PASSES * x.numel() * x.element_size() / copy_bytes_per_second * 1e6
            x.requires_grad_()
            for learned in (True, False):
                scale = scale.detach().requires_grad_(learned)
                row: dict[str, Any] = {
                    "case": name,
                    "dtype": str(dtype)[6:],
                    "learned": learned,
                    "floor_us": floor,
                }
                for label in ("fused", "plain"):

                    def step(
                        label: str = label, x: Tensor = x, scale: Tensor = scale, zero_point: Tensor = zero_point,
                        case: Case = case, grad: Tensor = grad, code: CodeType = code,
                    ) -> None:  # fmt: skip
                        view, (s, z) = align(x, LAYOUTS[case.layout], scale, zero_point)
                        s, z = (t.reshape(1) if t.numel() == 1 else t for t in (s, z))
                        if label == "fused":
                            y = snap_fused(view, s, z, code.low, code.high, 0.01)
                            assert y is not None
                        else:
                            y = snap_plain(view, s, z, code, 0.01)
                        leaves = [x, scale] if scale.requires_grad else [x]
                        torch.autograd.grad(y.reshape(x.shape), leaves, grad)

                    row[f"{label}_eager_us"] = time_of(step)
                    try:
                        row[f"{label}_us"] = time_of(step, graph=True)
                    except Exception as error:
                        print(f"  no graph of {name}, {label}: {type(error).__name__}: {str(error)[:150]}")
                        row[f"{label}_us"] = row[f"{label}_eager_us"]
                row["fused_over_floor"] = row["fused_us"] / floor
                row["plain_over_floor"] = row["plain_us"] / floor
                yield row
            del x, grad
            torch.cuda.empty_cache()
    yield from measure_pact(copy_bytes_per_second, time_of)


def measure_pact(
    copy_bytes_per_second: float, time_of: Callable[..., float], device: str = "cuda"
) -> Iterator[dict[str, Any]]:
    """The same for a clip with a learned end, of a large activation."""
    name = "activation 64x256x56x56 per tensor"
    for dtype in (torch.float32, torch.bfloat16):
        x, grad, _, _ = replace(TIMED[name], dtype=dtype).make(device)
        x.requires_grad_()
        quantizer = PACT("it", "A", TensorSpec(quantizer="pact", bits=4, symmetric=False)).to(device)
        floor = PASSES * x.numel() * x.element_size() / copy_bytes_per_second * 1e6
        row: dict[str, Any] = {
            "case": f"PACT {name}",
            "dtype": str(dtype)[6:],
            "learned": True,
            "floor_us": floor,
        }

        def step(x: Tensor = x, grad: Tensor = grad, quantizer: PACT = quantizer) -> None:
            torch.autograd.grad(quantizer.snap(x), [x, quantizer.alpha], grad)

        for label in ("fused", "plain"):
            with mock.patch.object(snapping, "USE_KERNELS", label == "fused"):
                row[f"{label}_eager_us"], row[f"{label}_us"] = time_of(step), time_of(step, graph=True)
            row[f"{label}_over_floor"] = row[f"{label}_us"] / floor
        yield row
