"""How much memory do saving and loading take beside the model, and how large are the folders?

A stack of linear layers with random weights is quantized to 8 and 4 bits, saved with float weights and packed, and
loaded. Memory is the highest resident size during the step less that before it and, for loading, less the float
weights of the loaded model.

Run from the repository root: ``python -m benchmarks.storage.run --gigabytes 4``. A run of some kinds alone keeps the
rows of the others that are in the file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.environment import describe
from sparsebit import QuantModel

RESULTS = Path(__file__).parent / "results"
KINDS = {"floats": (8, True), "w8": (8, False), "w4": (4, False)}  # bits, and whether floats are kept
WIDTH = 4096
LAYER = WIDTH * WIDTH * 4


def make(layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).eval()


def config(bits: int) -> dict[str, Any]:
    return {
        "BACKEND": "virtual",
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "uniform", "BIT": bits}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "uniform", "BIT": 8}},
    }


def status(key: str) -> float:
    """Megabytes of resident memory now (VmRSS) or at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise LookupError(key)


def measured(step: Callable[[], object], makes: int = 0) -> dict[str, float]:
    """Seconds, and megabytes beside what was there before and the bytes that the step makes."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest size is counted from here
    before, start = status("VmRSS"), time.perf_counter()
    kept = step()
    seconds, highest = time.perf_counter() - start, status("VmHWM")
    del kept
    return {"extra_mb": round(highest - before - makes / 2**20, 1), "seconds": round(seconds, 1)}


def save(folder: Path, layers: int, bits: int, floats: bool, out: Any) -> None:
    x = torch.randn(2, WIDTH)
    qmodel = QuantModel(make(layers), config(bits), example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    result = measured(lambda: qmodel.save(folder, floats=floats))
    torch.save(qmodel(x), folder.with_suffix(".out"))
    torch.save(x, folder.with_suffix(".in"))
    size = sum(path.stat().st_size for path in folder.iterdir())
    out.put(result | {"folder_mb": round(size / 2**20, 1), "of_float": round(size / (layers * LAYER), 4)})


def load(folder: Path, layers: int, out: Any) -> None:
    model = make(layers)
    held: list[QuantModel] = []
    result = measured(lambda: held.append(QuantModel.load(folder, model)), layers * LAYER)
    x, expected = (torch.load(folder.with_suffix(end), weights_only=True) for end in (".in", ".out"))
    out.put(result | {"bit_identical": torch.equal(held[0](x), expected)})


def in_a_process(work: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """Run a step in a process of its own, so that steps do not share their memory."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    process = context.Process(target=work, args=(*arguments, out))
    process.start()
    result: dict[str, Any] = out.get(timeout=1200)
    process.join()
    return result


def main() -> None:
    """Parse, run, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=f"some of: {', '.join(KINDS)}")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "memory.json")
    arguments = parser.parse_args()
    layers = round(arguments.gigabytes * 2**30 / LAYER)
    environment, model_mb = describe(0), layers * LAYER / 2**20
    rows: dict[str, Any] = {}
    if arguments.kinds and arguments.output.exists():
        rows = json.loads(arguments.output.read_text())["results"]
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.kinds or KINDS:
            place, (bits, floats) = Path(root) / name, KINDS[name]
            rows[name] = {
                "commit": environment["commit"],
                "save": in_a_process(save, place, layers, bits, floats),
                "load": in_a_process(load, place, layers),
            }
            shutil.rmtree(place)
            print(name, json.dumps(rows[name]), flush=True)
            result = {"environment": environment, "model_mb": model_mb, "results": rows}
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
