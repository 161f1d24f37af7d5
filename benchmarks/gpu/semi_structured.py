"""Products with 2:4 weights on the GPU: where are torch's semi-structured kernels faster than dense ones?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.numerics import Grid, Layout
from sparsebit.numerics.grid import choose_scale
from sparsebit.numerics.int8_vectors import CODE, round_vectors
from sparsebit.sparse import use_sparse_kernels
from sparsebit.sparse.compressed_linear import CompressedLinear
from sparsebit.sparse.int8_linear import Int8Linear
from sparsebit.sparse.semi_structured import find_algorithm

SHAPES = ((4096, 4096), (11008, 4096), (28672, 8192))
ROWS = Layout(kind="channel", axes=(0,))
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
    """What ``use_sparse_kernels`` measures and chooses for a layer, and how far its results are from the dense ones.

    Rows in a CUDA graph have more: the 2:4 product by cuSPARSELt's default algorithm, products of integers alone, dense
    and 2:4, and whether these are equal.
    """
    for in_cuda_graph in (True, False):
        for out, channels in SHAPES:
            weight = prune(torch.randn(out, channels, device="cuda", dtype=torch.bfloat16) / channels**0.5)
            for batch in BATCHES:
                linear = nn.Linear(channels, out, bias=False, device="cuda", dtype=torch.bfloat16)
                linear.weight.data = weight
                model = nn.Sequential(linear)
                x = torch.randn(batch, channels, device="cuda", dtype=torch.bfloat16)
                with torch.no_grad():
                    exact = model(x).float()
                    (found,) = use_sparse_kernels(model, x, int8=True, in_cuda_graph=in_cuda_graph).layers
                    error = float((model(x).float() - exact).norm() / exact.norm())
                    extra = measure_parts(linear, x, time_of) if in_cuda_graph else {}
                yield {
                    "shape": [out, channels],
                    "batch": batch,
                    "in_cuda_graph": in_cuda_graph,
                    "floor_us": floor_us(out, channels, batch, bandwidth),
                    "floor_int8_us": floor_us(out, channels, batch, bandwidth, 1),
                    "chosen": "2:4 int8" if found.int8 else "2:4" if found.used else "dense",
                    "dense_us": found.dense_us,
                    "sparse_us": found.sparse_us,
                    "int8_us": found.int8_us,
                    "error": error,
                    "reason": found.reason,
                    **extra,
                }


def measure_parts(linear: nn.Linear, x: Tensor, time_of: Callable[..., float]) -> dict[str, Any]:
    """Products by the default algorithm, and those of integers alone by the fastest one."""
    default = CompressedLinear(linear.weight, None)
    row: dict[str, Any] = {"default_algorithm_us": time_of(lambda: default(x), graph=True)}
    if len(x) <= 16:  # torch has no dense products of integers for few vectors
        return row
    layer = Int8Linear(linear.weight, None)
    layer.algorithms = {len(x): find_algorithm(layer, x)}
    steps, codes = round_vectors(x)[0], Grid(*row_scales(linear.weight), CODE, ROWS).codes(linear.weight)
    sums = layer._products(steps, dtype=torch.int32)
    row["int8_equal"] = bool(torch.equal(sums, torch._int_mm(steps, codes.T)))
    row["int8_dense_product_us"] = time_of(lambda: torch._int_mm(steps, codes.T), graph=True)
    row["int8_product_us"] = time_of(lambda: layer._products(steps, dtype=torch.int32), graph=True)
    return row


def row_scales(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero point of each row."""
    return choose_scale(*weight.detach().aminmax(dim=1), CODE)
