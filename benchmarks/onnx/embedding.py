"""What integer embeddings save: the MiniLM sentence encoder with a float table and with quantized rows.

Size of the file, Spearman correlation on the STS benchmark's dev pairs in ONNX Runtime, and the two files timed in
turns. Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.onnx.embedding``
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.environment import describe
from benchmarks.tasks import open_task
from sparsebit import QuantModel, parse_qconfig
from sparsebit.analysis import FLOAT, with_layer_bits
from sparsebit.runtime import OnnxFile, compare_latency

SEED = 0
TABLES = ("word", "position", "token_type")


def export(task: Any, tables: str, folder: Path) -> Any:
    """The encoder on integers, its tables too or in float."""
    config = parse_qconfig("int8_onnxruntime")
    if tables == "float":
        names = {f"bert.embeddings.{name}_embeddings": FLOAT for name in TABLES}
        config = with_layer_bits(config, names)
    torch.manual_seed(SEED)
    example = task.example()
    qmodel = QuantModel(task.model(), config, *example)
    qmodel.calibrate(task.calibration(256, 64), feed=lambda call: call[0] or call[1], progress=False)
    return qmodel.export_onnx(example[0] or example[1], folder / f"{tables}.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=None, help="sentence pairs, for a quick look")
    parser.add_argument("--seconds", type=float, default=10.0, help="to time each file")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "embedding.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, rows = open_task("stsb_minilm"), {}
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for tables in ("float", "int8"):
            done = export(task, tables, Path(folder))
            files[tables] = OnnxFile(done.path, threads=1)
            result = task.evaluate(files[tables], options.limit)
            worst = done.report.outputs[0]
            rows[tables] = {
                "bytes": done.exported.bytes,
                "spearman": round(result.metric, 4),
                "axes": done.exported.axes,
                "sqnr_db_to_torch": round(worst.sqnr_db, 1),
                "integer_operators": len(done.report.ops) - len(done.report.fallbacks),
                "planned_operators": len(done.report.ops),
            }
            Console().print(tables, rows[tables])
        call = task.test_calls(16, 1)[0]()
        feeds = {name: file.feed(*call[0], **call[1]) for name, file in files.items()}
        times = compare_latency(
            {name: lambda file=file, feed=feeds[name]: file.run(feed) for name, file in files.items()},  # type: ignore[misc]
            seconds=options.seconds,
            shown=False,
        )
    for name, time in times.items():
        rows[name]["median_ms"] = round(time.milliseconds, 3)
    ratio = times.speedup("int8", "float")
    speed = {"median": ratio.median, "low": ratio.low, "high": ratio.high, "verdict": str(ratio)}
    text = {
        "environment": describe(SEED, ("torch", "onnx", "onnxruntime", "transformers")),
        "limit": options.limit,
        "rows": rows,
        "speed_of_int8_tables": speed,
    }
    Console().print(speed)
    options.output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
