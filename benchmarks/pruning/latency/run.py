"""Does removing half of the multiply-accumulates make a network faster where it runs?

Dense and shrunk networks under ONNX Runtime, batch 1, one thread, interleaved, medians; with widths rounded to
multiples of 8 (the default) and without. Weights are random: speed does not depend on them.

Run from the repository root: ``python -m benchmarks.pruning.latency.run``
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from benchmarks.environment import describe
from sparsebit import SparseModel
from sparsebit.export import export_onnx
from sparsebit.runtime import Session, open_session
from tests.zoo.nets import mobilenet, resnet

SEED = 0
NETS = {"resnet18": resnet.resnet18, "resnet50": resnet.resnet50, "mobilenet_v2": mobilenet.MobileNetV2}


def shrunk(model: nn.Module, x: torch.Tensor, round_to: int) -> tuple[nn.Module, float]:
    config = {
        "SPARSER": {
            "TYPE": "structured",
            "STRATEGY": "l1norm",
            "RATIO": 0.5,
            "TARGET": "macs",
            "ROUND_TO": round_to,
        }
    }
    smodel = SparseModel(model, config, example_inputs=(x,))
    smodel.calc_params()
    small = smodel.shrink()
    report = smodel.report()
    assert report.macs_before and report.macs_after
    return small, report.macs_after / report.macs_before


def session(model: nn.Module, x: torch.Tensor, folder: Path, name: str) -> Session:
    done = export_onnx(model.eval(), x, folder / f"{name}.onnx", check=False)
    return open_session(done.path, threads=1)


def measure(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(SEED)
    model, x = NETS[name]().eval(), torch.randn(1, 3, 224, 224)
    row: dict[str, Any] = {"model": name}
    with tempfile.TemporaryDirectory() as folder:
        sessions = {"dense": session(model, x, Path(folder), "dense")}
        for round_to in (8, 1):
            small, share = shrunk(model, x, round_to)
            row[f"macs_left_round_{round_to}"] = round(share, 4)
            sessions[f"round_{round_to}"] = session(small, x, Path(folder), f"small{round_to}")
        times: dict[str, list[float]] = {key: [] for key in sessions}
        for turn in range(rounds + 2):
            for key, run in sessions.items():
                start = time.process_time()
                run.run({run.inputs[0].name: x.numpy()})
                if turn >= 2:
                    times[key].append(time.process_time() - start)
    medians = {key: statistics.median(values) for key, values in times.items()}
    row["dense_ms"] = round(1000 * medians["dense"], 2)
    row |= {f"speedup_{key}": round(medians["dense"] / medians[key], 3) for key in medians if key != "dense"}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(NETS), choices=list(NETS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.models:
        rows.append(measure(name, options.rounds))
        Console().print(rows[-1])
        text = {
            "measured": "process CPU time",
            "environment": describe(SEED, ("torch", "onnx", "onnxruntime")),
            "rows": rows,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
