"""What it costs that exported files are opened in a child process.

    python -m benchmarks.robustness.isolation --output result.json

Each network is exported with its check in turns: sessions in the child, and in the process itself. The first export of
a process also starts the child.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from sparsebit import QuantModel
from sparsebit.runtime import session
from tests.zoo.nets.resnet import resnet18

NETS = {
    "small": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 900, 10)), 32),
    "resnet18": (resnet18, 224),
}


def export_seconds(qmodel: QuantModel, x: torch.Tensor, isolated: bool) -> float:
    """One export with its check."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if isolated:
            qmodel.export_onnx(x, Path(folder) / "a.onnx")
        else:
            with patch("sparsebit.runtime.isolation.open_isolated", session.open_source):
                qmodel.export_onnx(x, Path(folder) / "a.onnx")
    return time.perf_counter() - began


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Medians over the rounds, and of the ratio within a round."""
    make, size = NETS[name]
    torch.manual_seed(0)
    x = torch.randn(2, 3, size, size)
    qmodel = QuantModel(make().eval(), "int8_onnxruntime", example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    export_seconds(qmodel, x, False)
    started = export_seconds(qmodel, x, True)
    pairs = [(export_seconds(qmodel, x, True), export_seconds(qmodel, x, False)) for _ in range(rounds)]
    return {
        "first_isolated_s": round(started, 3),
        "isolated_s": round(statistics.median(one for one, _ in pairs), 3),
        "in_process_s": round(statistics.median(other for _, other in pairs), 3),
        "ratio": round(statistics.median(one / other for one, other in pairs), 3),
        "ratios": [round(one / other, 3) for one, other in pairs],
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    from benchmarks.environment import describe

    result = {"environment": describe(0, ("torch", "onnxruntime"))}
    result |= {name: measure(name, arguments.rounds) for name in NETS}
    text = json.dumps(result, indent=1)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
