"""Is the exported int8 model faster than float, and than what ONNX Runtime's own quantizer makes of the same model?

Every variant of one model runs in the same process, interleaved; medians. Weights are random, which changes no
kernel's time. Run from the repository root: ``python -m benchmarks.onnx.run``
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.environment import describe
from benchmarks.onnx.models import MODELS
from benchmarks.onnx.peer import quantize_with_peer
from sparsebit import capture
from sparsebit.export import check, export_graph
from sparsebit.quantization import QuantModel
from sparsebit.runtime import compare_latency, open_session

SEED = 0
FOR_OPENVINO = "int8 for OpenVINO"
SYMMETRIC = {
    "BACKEND": "onnxruntime",
    "SCHEDULE": {"FUSE_BN": True},
    "W": {
        "QSCHEME": "per-channel-symmetric",
        "QUANTIZER": {"TYPE": "uniform", "BIT": 8},
        "OBSERVER": {"TYPE": "MINMAX"},
    },
    "A": {
        "QSCHEME": "per-tensor-symmetric",
        "QUANTIZER": {"TYPE": "uniform", "BIT": 8},
        "OBSERVER": {"TYPE": "MINMAX"},
    },
}


def make_files(name: str, folder: Path) -> tuple[dict[str, Path], dict[str, Any], dict[str, Any]]:
    """Every variant of a model as a file, the inputs to run it on, and what the check of ours said."""
    build, example = MODELS[name]
    torch.manual_seed(SEED)
    model = build().eval()
    args, kwargs = example()
    files: dict[str, Path] = {}
    graph = capture(model, args, kwargs)
    exported = export_graph(graph, args, kwargs, folder / "float.onnx", dynamic_axes=None)
    files["float"] = exported.path
    values = [*args, *kwargs.values()]
    feed = {name: value.numpy() for name, value in zip(exported.input_names, values, strict=True)}
    facts: dict[str, Any] = {"float_mb": round(exported.bytes / 1e6, 1)}
    configs = {"int8": "int8_onnxruntime", "int8 symmetric": SYMMETRIC, FOR_OPENVINO: "int8_openvino"}
    for label, config in configs.items():
        qmodel = QuantModel(model, config, example_inputs=args, example_kwargs=kwargs)
        qmodel.calibrate([args or kwargs], progress=False)
        qmodel.set_quant(w_quant=True, a_quant=True)
        path, target = folder / f"{label}.onnx", qmodel.plan.target
        done = export_graph(qmodel.model, args, kwargs, path, target=target, dynamic_axes=None)
        files[label] = done.path
        if label == "int8":
            report = check(qmodel.model, done, [(args, kwargs)])
            facts |= {
                "int8_mb": round(done.bytes / 1e6, 1),
                "export_s": round(done.seconds, 2),
                "agrees": report.ok,
                "codes_off": report.mismatch_share,
                "most_off": max((t.largest for t in report.tensors if t.blame != "kernel"), default=0),
                "integer_ops": f"{len(report.ops) - len(report.fallbacks)} of {len(report.ops)}",
                "fallbacks": [f"{op.name}: {op.why}" for op in report.fallbacks],
            }
        del qmodel
    files |= {
        f"peer: {setting}": path
        for setting, path in quantize_with_peer(files["float"], folder, [feed]).items()
    }
    return files, feed, facts


def medians_of(
    files: Mapping[str, Path], feed: Mapping[str, Any], runtime: str, threads: int, rounds: int
) -> dict[str, float]:
    """Median milliseconds of each file, taking turns."""
    sessions = {
        label: open_session(path, runtime=runtime, threads=threads, spinning=False)
        for label, path in files.items()
    }
    times = compare_latency(
        {label: partial(session.run, feed) for label, session in sessions.items()}, rounds=rounds
    )
    return {label: round(time.milliseconds, 3) for label, time in times.items()}


def measure(
    name: str, rounds: int, threads: list[int], with_openvino: bool, before: Path | None, keep: Path | None
) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        files, feed, facts = make_files(name, Path(place))
        for_openvino = {"float": files["float"], "int8": files.pop(FOR_OPENVINO)}
        if keep is not None:
            shutil.copy(files["int8"], keep / f"{name}.onnx")
        if before is not None:
            files["int8 before"] = before / f"{name}.onnx"
        for count in threads:
            medians = medians_of(files, feed, "onnxruntime", count, rounds)
            gc.collect()
            peers = {label: value for label, value in medians.items() if label.startswith("peer")}
            best = min(peers, key=lambda label: peers[label]) if peers else None
            row = {
                "model": name,
                "threads": count,
                "ms": medians,
                "speedup": round(medians["float"] / medians["int8"], 2),
                "speedup_symmetric": round(medians["float"] / medians["int8 symmetric"], 2),
                "best_peer": best,
                "speedup_best_peer": round(medians["float"] / peers[best], 2) if best else None,
                **facts,
            }
            if before is not None:
                row["speedup_before"] = round(medians["float"] / medians["int8 before"], 2)
            if with_openvino:
                medians = medians_of(for_openvino, feed, "openvino", count, rounds)
                row |= {
                    "openvino_ms": medians,
                    "openvino_speedup": round(medians["float"] / medians["int8"], 2),
                }
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--no-openvino", action="store_true")
    parser.add_argument("--before", type=Path, help="a folder with int8 files of another commit, to time too")
    parser.add_argument("--keep", type=Path, help="a folder for the int8 files, as another commit takes them")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "latency.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    console, rows = Console(), []
    for name in options.models:
        openvino = not options.no_openvino
        rows += measure(name, options.rounds, options.threads, openvino, options.before, options.keep)
        for row in rows[-len(options.threads) :]:
            console.print({key: row[key] for key in row if key not in ("fallbacks",)})
    result = {
        "environment": describe(SEED, ("torch", "onnx", "onnxruntime", "openvino")),
        "rounds": options.rounds,
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table = Table("model", "threads", "float ms", "int8 ms", "×", "symmetric ×", "best peer ×", "OpenVINO ×")
    for row in rows:
        table.add_row(
            row["model"], str(row["threads"]), str(row["ms"]["float"]), str(row["ms"]["int8"]), str(row["speedup"]),
            str(row["speedup_symmetric"]), str(row["speedup_best_peer"]), str(row.get("openvino_speedup", "")),
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
