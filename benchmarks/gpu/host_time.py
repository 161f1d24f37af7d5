"""Host time of an activation's quantizer on any machine: kernels are replaced by nothing, the Python around them stays.

``python -m benchmarks.gpu.host_time --out FILE``. Quantizers and a ReLU take turns, in CPU time, on small tensors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.environment import describe, report
from sparsebit.config import TensorSpec
from sparsebit.kernels import fake_quant, fake_quant_triton, launch
from sparsebit.quantization.quantizers import QUANTIZERS, Quantizer, base

CHAIN, ROUNDS = 100, 25


class NoKernel:
    """Stands for a Triton kernel and for what it is compiled to."""

    function, packed_metadata = 0, ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., NoKernel]:
        return lambda *_, **__: self

    def run(self, *_: Any) -> None:
        """Start nothing."""


def make(kind: str) -> Quantizer:
    """One activation's quantizer, with one scale."""
    spec = TensorSpec(bits=4, symmetric=False, granularity="tensor", quantizer=kind)
    quantizer = QUANTIZERS[kind]("it", "A", spec)
    quantizer.set_grid(torch.tensor([0.1]), torch.tensor([8.0]))
    quantizer.enable_quant()
    return quantizer


def chain(step: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    """Microseconds of one call in the forward and in the backward pass."""
    y, start = x, time.process_time()
    for _ in range(CHAIN):
        y = step(y)
    middle = time.process_time()
    y.backward(torch.ones_like(y))
    return (middle - start) / CHAIN * 1e6, (time.process_time() - middle) / CHAIN * 1e6


def measure() -> dict[str, dict[str, float]]:
    """Medians for each kind."""
    kernels = dict.fromkeys(("snap_forward", "snap_backward", "add_sums"), NoKernel())
    with (
        mock.patch.multiple(fake_quant_triton, **kernels),
        mock.patch.object(fake_quant, "AVAILABLE", True),
        mock.patch.object(launch, "current_stream", lambda device: 0),
        mock.patch.object(base, "kernels_run_on", lambda x: not torch.compiler.is_compiling()),
    ):
        fake_quant.snap_kernels.cache_clear()
        steps: dict[str, Callable[[Tensor], Tensor]] = {"relu": nn.ReLU(), "uniform": make("uniform")}
        steps["lsq"] = make("lsq")
        x = torch.randn(8, 8, 2, 2, requires_grad=True)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                times[name].append(chain(step, x))
        fake_quant.snap_kernels.cache_clear()
    found = {}
    for name, pairs in times.items():
        forward, backward = (sorted(column)[ROUNDS // 2] for column in zip(*pairs, strict=True))
        found[name] = {"forward_us": round(forward, 1), "backward_us": round(backward, 1)}
    return found


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    report({"environment": describe(0, ("torch",)), "us_per_call": measure()}, asked.out)


if __name__ == "__main__":
    main()
