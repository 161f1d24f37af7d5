"""Is the exported file as accurate as the model that was calibrated?

The int8 model in torch and its ONNX file in ONNX Runtime, on the whole test set: metric, and how often they agree.

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.onnx.accuracy``
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.tasks import agreement, open_task
from sparsebit import QuantModel, parse_qconfig
from sparsebit.runtime import OnnxFile

SEED = 0


def measure(name: str, preset: str, limit: int | None) -> dict[str, Any]:
    torch.manual_seed(SEED)
    task = open_task(name)
    example = task.example()
    qmodel = QuantModel(task.model(), parse_qconfig(preset), *example)
    qmodel.calibrate(task.calibration(256, 64), feed=lambda call: call[0] or call[1], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    with tempfile.TemporaryDirectory() as folder:
        done = qmodel.export_onnx(example[0] or example[1], Path(folder) / "model.onnx")
        file = OnnxFile(done.path, threads=torch.get_num_threads())

        def run(*args: Tensor, **kwargs: Tensor) -> Tensor:
            outputs = file(*args, **kwargs)
            return outputs[0] if isinstance(outputs, tuple) else outputs

        in_torch, in_runtime = task.evaluate(qmodel, limit), task.evaluate(run, limit)
    return {
        "task": name,
        "preset": preset,
        "float": task.published,
        "torch": round(in_torch.metric, 3),
        "onnxruntime": round(in_runtime.metric, 3),
        "agreement": round(float(agreement(in_torch, in_runtime)), 5),
        "integer_operators": sum(op.on_integers for op in done.report.ops),
        "planned_operators": len(done.report.ops),
        "codes_off": done.report.mismatch_share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", default=["cifar10_resnet20", "cifar10_resnet56"])
    parser.add_argument("--preset", default="int8_onnxruntime")
    parser.add_argument("--limit", type=int, default=None, help="test samples, for a quick look")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "accuracy.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.tasks:
        rows.append(measure(name, options.preset, options.limit))
        Console().print(rows[-1])
        text = {"environment": describe(SEED, ("torch", "onnx", "onnxruntime")), "rows": rows}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
