"""Graphs of up to 10,000 nodes through capture, quantization, pruning, save and load: does time stay near linear?

    python -m benchmarks.robustness.large_graphs --nodes 2500 5000 10000 --output result.json

The network is a chain of residual blocks of five nodes each: two linear layers, a ReLU, a product, an addition. Times
are of the processor, so that a busy machine does not show. ``growth`` is the exponent between the smallest and the
largest graph: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.environment import describe
from sparsebit import QuantModel, SparseModel, capture

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


class Chain(nn.Module):
    """So many residual blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(8, 8) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + 0.01 * down(torch.relu(up(x)))
        return x


def seconds(work: Callable[[], Any], times: dict[str, float], name: str) -> Any:
    """Processor seconds of a step, kept by its name."""
    began = time.process_time()
    result = work()
    times[name] = round(time.process_time() - began, 3)
    print(f"  {name}: {times[name]} s", flush=True)
    return result


def measure(nodes: int) -> dict[str, float]:
    """Every step on a graph of so many nodes."""
    torch.manual_seed(0)
    times: dict[str, float] = {}
    model = Chain(nodes // 5).eval()
    gm = seconds(lambda: capture(model, (X,)), times, "capture")
    assert len(gm.graph.nodes) > nodes - 5 and torch.equal(gm(X), model(X))
    qmodel = seconds(lambda: QuantModel(model, "int8_onnxruntime", example_inputs=(X,)), times, "plan")
    seconds(lambda: qmodel.calibrate([X], progress=False), times, "calibrate")
    smodel = seconds(lambda: SparseModel(model, HALF, example_inputs=(X,)), times, "group channels")
    seconds(smodel.calc_params, times, "choose")
    seconds(smodel.shrink, times, "shrink")
    with tempfile.TemporaryDirectory() as folder:
        seconds(lambda: qmodel.save(Path(folder) / "q"), times, "save")
        again = seconds(lambda: QuantModel.load(Path(folder) / "q", model), times, "load")
        assert torch.equal(again(X), qmodel(X))
    return times


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2500, 5000, 10_000])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[int, dict[str, float]] = {}
    for nodes in arguments.nodes:
        print(f"{nodes} nodes", flush=True)
        found[nodes] = measure(nodes)
    small, large = min(found), max(found)
    growth = {
        name: round(math.log(max(found[large][name], 1e-3) / max(found[small][name], 1e-3), large / small), 2)
        for name in found[large]
    }
    text = json.dumps({"environment": describe(0), "seconds": found, "growth": growth}, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
