"""Products with 2:4 weights on the GPU: where are torch's semi-structured kernels faster than dense ones?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.sparse import use_sparse_kernels

SHAPES = ((4096, 4096), (11008, 4096), (28672, 8192))
BATCHES = (1, 8, 64, 512, 4096)


def prune(weight: Tensor) -> Tensor:
    """The two largest of every four neighbours stay."""
    fours = weight.unflatten(1, (-1, 4))
    kept = torch.zeros_like(fours, dtype=torch.bool).scatter_(2, fours.abs().topk(2, dim=2).indices, True)
    return (fours * kept).flatten(1)


def floor_us(out: int, channels: int, batch: int, bandwidth: float, width: int = 2) -> float:
    """What the memory of a 2:4 product takes: half of the weight, a bit for each value's position, x and the result."""
    result = 4 if width == 1 else width  # integers are added up in int32
    moved = out * channels * (width / 2 + 1 / 8) + batch * (channels * width + out * result)
    return moved / bandwidth * 1e6


def measure(bandwidth: float, time_of: Callable[..., float]) -> Iterator[dict[str, Any]]:
    """Microseconds for each shape, batch and dtype, dense and 2:4, and how far the 2:4 product is from the dense."""
    for out, channels in SHAPES:
        weight = prune(torch.randn(out, channels, device="cuda", dtype=torch.bfloat16) / channels**0.5)
        compressed = torch.sparse.to_sparse_semi_structured(weight)
        steps = torch.randint(-127, 128, (out, channels), device="cuda", dtype=torch.int8)
        steps = prune(steps.half()).to(torch.int8)
        for batch in BATCHES:
            x = torch.randn(batch, channels, device="cuda", dtype=torch.bfloat16)
            exact = F.linear(x, weight)
            row: dict[str, Any] = {
                "shape": [out, channels],
                "batch": batch,
                "floor_us": floor_us(out, channels, batch, bandwidth),
                "floor_int8_us": floor_us(out, channels, batch, bandwidth, 1),
            }
            ways: dict[str, Callable[[], Tensor]] = {
                "bf16": lambda w=weight, x=x: F.linear(x, w),
                "bf16_24": lambda w=compressed, x=x: F.linear(x, w),
            }
            if batch > 16:
                codes = torch.randint(-127, 128, (batch, channels), device="cuda", dtype=torch.int8)
                packed = torch._cslt_compress(steps)
                ways["int8"] = lambda c=codes, s=steps: torch._int_mm(c, s.T)
                ways["int8_24"] = lambda c=codes, p=packed: torch._cslt_sparse_mm(
                    p, c.T, out_dtype=torch.int32
                )
            for name, way in ways.items():
                try:
                    found = way()
                    if name == "bf16_24":
                        row["error"] = float((found - exact).float().norm() / exact.float().norm())
                    if name == "int8_24":
                        row["int8_equal"] = bool(torch.equal(found.T, torch._int_mm(codes, steps.T)))
                    row[f"{name}_us"] = time_of(way, graph=True)
                except Exception as error:
                    row[f"{name}_us"] = None
                    print(
                        f"  {name} of {row['shape']} at {batch}: {type(error).__name__}: {str(error)[:200]}"
                    )
            yield row
    yield from measure_verb(bandwidth)


def measure_verb(bandwidth: float) -> Iterator[dict[str, Any]]:
    """What ``use_sparse_kernels`` chooses for a layer of each shape at each batch, and how far its results are."""
    for in_cuda_graph in (True, False):
        for out, channels in SHAPES:
            for batch in BATCHES:
                linear = nn.Linear(channels, out, bias=False, device="cuda", dtype=torch.bfloat16)
                linear.weight.data = prune(linear.weight.data)
                layer = nn.Sequential(linear)
                x = torch.randn(batch, channels, device="cuda", dtype=torch.bfloat16)
                with torch.no_grad():
                    exact = layer(x).float()
                    (found,) = use_sparse_kernels(layer, x, int8=True, in_cuda_graph=in_cuda_graph).layers
                    error = float((layer(x).float() - exact).norm() / exact.norm())
                yield {
                    "shape": [out, channels],
                    "batch": batch,
                    "in_cuda_graph": in_cuda_graph,
                    "floor_us": floor_us(out, channels, batch, bandwidth),
                    "verb": "2:4 int8" if found.int8 else "2:4" if found.used else "dense",
                    "dense_us": found.dense_us,
                    "sparse_us": found.sparse_us,
                    "int8_us": found.int8_us,
                    "error": error,
                    "reason": found.reason,
                }
