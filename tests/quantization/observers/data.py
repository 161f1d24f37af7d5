"""Data that observers meet, and how to feed it to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.quantization.observers import Observer, Range


def draw(name: str, count: int = 100_000, seed: int = 0) -> Tensor:
    """``count`` values of one kind of tensor."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, generator=generator)
    u = torch.rand(count, generator=generator, dtype=torch.float64) - 0.5
    chi = torch.randn(3, count, generator=generator).square().mean(0).sqrt()
    return {
        "gaussian": lambda: z,
        "laplace": lambda: (-u.sign() * torch.log1p(-2 * u.abs())).float(),
        "relu": lambda: z.relu(),
        "relu6": lambda: (3 * z).clamp(0, 6),
        "heavy_tailed": lambda: z / chi,  # Student's t with 3 degrees of freedom
        "gelu": lambda: torch.nn.functional.gelu(2 * z),
        "softmax": lambda: torch.softmax(2 * z[: count // 100 * 100].view(-1, 100), 1).flatten(),
        "shifted": lambda: z + 2,
        "negative": lambda: -z.relu(),
        "integers": lambda: (20 * z).round(),
    }[name]()


NAMES = (
    "gaussian",
    "laplace",
    "relu",
    "relu6",
    "heavy_tailed",
    "gelu",
    "softmax",
    "shifted",
    "negative",
    "integers",
)


def feed(observer: Observer[Any], batches: Sequence[Tensor]) -> Any:
    """The state after batches of rows ([C, N])."""
    state = observer.init(batches[0])
    for batch in batches:
        state = observer.update(state, batch)
    return state


def measure(observer: Observer[Any], x: Tensor, grid: CodeType | None = None) -> Range:
    """The range of ``x``, one row or [C, N], streamed in one piece."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    return observer.finish(feed(observer, [rows]), grid or CodeType.of())


def sqnr(x: Tensor, found: Range, grid: CodeType) -> float:
    """Signal to quantization noise in decibels."""
    y = choose_grid(*found, grid, Layout(kind="channel")).snap(x).double()
    noise = (x.double() - y).square().sum()
    return float(10 * torch.log10(x.double().square().sum() / noise))
