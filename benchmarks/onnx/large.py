"""Do models over 2 GB export, load, run and agree? A protobuf message ends at 2 GiB; the weights go to a second file.

Two models: one in float, whose weights alone are over 2 GB; and one in int8 whose embedding, which stays in float, is.
Each is exported and checked in a process of its own, so that its peak memory can be told. The files are deleted.

Run from the repository root: ``python -m benchmarks.onnx.large`` (five minutes, 10 GB of memory, 10 GB of disk).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.environment import describe
from sparsebit import QuantModel, capture
from sparsebit.export import check, export_graph

SEED = 0


class Wide(nn.Module):
    """Nine square layers, 2.4 GB in float."""

    def __init__(self, width: int = 8192, depth: int = 9) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Vocabulary(nn.Module):
    """A large embedding, 2.1 GB in float, and layers behind it."""

    def __init__(self, words: int = 262144, width: int = 2048) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return self.head(x.mean(1))


CASES = {"float": "nine layers of 8192 x 8192", "int8": "an embedding of 262144 x 2048 and three layers"}


def measure(case: str, folder: str) -> dict[str, Any]:
    """One case, with the memory of this process."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    if case == "float":
        model, x, other = Wide().eval(), torch.randn(2, 8192), torch.randn(3, 8192)
        before = _peak()
        graph = capture(model, x)
    else:
        model = Vocabulary().eval()
        x, other = torch.randint(262144, (2, 16)), torch.randint(262144, (3, 16))
        before = _peak()
        qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(x,))
        qmodel.calibrate([torch.randint(262144, (4, 16)) for _ in range(4)], progress=False)
        qmodel.set_quant(w_quant=True, a_quant=True)
        graph = qmodel.model
    made = _peak()
    exported = export_graph(graph, (x,), path=Path(folder) / f"{case}.onnx")
    written = _peak()
    started = time.perf_counter()
    report = check(graph, exported, [((x,), {}), ((other,), {})])
    return {
        "case": case,
        "model": CASES[case],
        "parameters": sum(p.numel() for p in model.parameters()),
        "files": {file.name: file.stat().st_size for file in exported.files},
        "export_s": round(exported.seconds, 1),
        "check_s": round(time.perf_counter() - started, 1),
        "peak_gb": {"model": before, "captured": made, "exported": written, "checked": _peak()},
        "agrees": report.ok,
        "problems": list(report.problems),
        "largest_error": max(output.error for output in report.outputs),
        "sqnr_db": round(min(output.sqnr_db for output in report.outputs), 1),
        "codes_off": report.mismatch_share,
        "tensors_compared": len(report.tensors),
        "integer_ops": {op.name: op.runs_as for op in report.ops},
    }


def _peak() -> float:
    """The most memory this process has held so far, in GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--folder", type=Path, default=None, help="where the files are for a while")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "large.json")
    options = parser.parse_args()
    rows = []
    for case in options.cases:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, mp_context=context)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, pool:
            rows.append(pool.submit(measure, case, folder).result())
        Console().print(rows[-1])
    result = {"environment": describe(SEED, ("torch", "onnx", "onnxruntime")), "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
