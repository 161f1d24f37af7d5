"""How many models of the zoo export in int8, pass onnx's checker, load in ONNX Runtime and agree with torch?

Run from the repository root: ``python -m benchmarks.onnx.zoo`` (a quarter of an hour), or with names for a few of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.environment import describe
from sparsebit.export import Exported, ExportError, check, export_graph
from sparsebit.export.translate.undisturbed import undisturbed
from sparsebit.graph.run import flatten_call
from sparsebit.quantization import QuantModel
from tests.zoo import ZOO, ZooEntry

SEED = 0
GOAL = 0.95


def attempt(entry: ZooEntry, folder: Path, config: str) -> dict[str, Any]:
    """Quantize, export, check; what happened, and in which step it ended."""
    import onnx

    started, step = time.perf_counter(), "quantize"
    row: dict[str, Any] = {"model": entry.name, "family": entry.family}
    batch = entry.batches[0]
    try:
        torch.manual_seed(SEED)
        model = entry.make()
        args, kwargs = entry.inputs(batch)
        qmodel = QuantModel(model, config, example_inputs=args, example_kwargs=kwargs)
        args, kwargs = entry.inputs(batch)
        qmodel.prepare_calibration()
        qmodel(*args, **kwargs)
        qmodel.calc_qparams()
        qmodel.set_quant(w_quant=True, a_quant=True)
        step = "export"
        exported = _export(qmodel, entry, folder / "model.onnx")
        row |= {"engine": exported.engine, "dynamic": bool(exported.axes), "tensors": len(exported.tensors)}
        step = "checker"
        onnx.checker.check_model(str(exported.path), full_check=True)
        step = "agreement"
        sizes = [size for size in entry.batches if size == batch or _takes(qmodel, entry.inputs(size))]
        calls = [entry.inputs(size) for size in (sizes if exported.axes else (batch,))]
        report = check(qmodel.model, exported, calls)
        row |= {
            "codes_off": report.mismatch_share,
            "integer_ops": len(report.ops) - len(report.fallbacks),
            "planned_ops": len(report.ops),
            "rounded_by_kernels": {
                t.name: f"{t.mismatched} of {t.elements}, by {t.largest}"
                for t in report.tensors
                if t.blame == "kernel"
            },
            "fallbacks": [f"{op.name}: {op.why}" for op in report.fallbacks],
            "sqnr_db": round(min((o.sqnr_db for o in report.outputs), default=200.0), 1),
        }
        row["result"] = "ok" if report.ok else "differs"
        if not report.ok:
            row["why"] = "; ".join(report.problems[:3])
            if entry.random:
                row["result"] = "ok"
                row["why"] = "draws random numbers: nothing to compare"
    except Exception as error:
        row |= {"result": f"failed: {step}", "why": f"{type(error).__name__}: {error}"[:600]}
    row["seconds"] = round(time.perf_counter() - started, 2)
    return row


def _takes(qmodel: QuantModel, call: Any) -> bool:
    """Whether the captured model runs on inputs of another batch at all."""
    try:
        with torch.no_grad(), undisturbed(qmodel.model):
            qmodel(*call[0], **call[1])
    except Exception:
        return False
    return True


def _export(qmodel: QuantModel, entry: ZooEntry, path: Path) -> Exported:
    """With the axes that differ between two batches as dynamic ones; with fixed sizes where that cannot be."""
    args, kwargs = entry.inputs(entry.batches[0])
    names = [node.name for node in qmodel.model.graph.nodes if node.op == "placeholder"]
    axes: dict[str, dict[int, str]] = {}
    if len(entry.batches) > 1:
        calls = [flatten_call(qmodel.model, *entry.inputs(batch)) for batch in entry.batches[:2]]
        for name, one, other in zip(names, *calls, strict=True):
            different = [
                axis for axis, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b
            ]
            axes |= {name: {axis: f"{name}_{axis}" for axis in different}} if different else {}
    try:
        return export_graph(qmodel.model, args, kwargs, path, dynamic_axes=axes)
    except ExportError:
        if not axes:
            raise
        return export_graph(qmodel.model, args, kwargs, path, dynamic_axes=None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--config", default="int8_onnxruntime")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "zoo.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    entries = [ZOO[name] for name in options.names] or [e for e in ZOO.values() if not e.refuses]
    with tempfile.TemporaryDirectory() as folder:
        rows = [attempt(entry, Path(folder), options.config) for entry in track(entries, "exporting")]
    counts = Counter(row["result"] for row in rows)
    result = {
        "environment": describe(SEED, ("torch", "onnx", "onnxruntime", "transformers")),
        "config": options.config,
        "counts": dict(counts),
        "share": round(counts["ok"] / len(rows), 4),
        "goal": GOAL,
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table = Table("model", "result", "why")
    for row in rows:
        if row["result"] != "ok":
            table.add_row(row["model"], row["result"], row.get("why", ""))
    console = Console()
    console.print(table)
    console.print(f"{counts['ok']} of {len(rows)} ({counts['ok'] / len(rows):.1%})")


if __name__ == "__main__":
    main()
