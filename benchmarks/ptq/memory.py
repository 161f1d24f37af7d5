"""How much memory calibrating takes: one method, in a process of its own.

``python -m benchmarks.ptq.memory --task cifar10_resnet20 --method sparsebit_mse`` prints one line of JSON. The method
``float`` is the bare forward over the same batches. The high-water mark is set back just before, so neither imports nor
exports count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.ptq.methods import METHODS
from benchmarks.tasks import TASKS, open_task


def peak(task: str, method: str, *, count: int, batch: int, threads: int) -> dict[str, float]:
    """Megabytes before and at most during calibration, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.ptq.memory", "--task", task, "--method", method]
    command += ["--count", str(count), "--batch", str(batch), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(task_name: str, method_name: str, count: int, batch: int) -> dict[str, float]:
    task = open_task(task_name)
    model, (example, _) = task.model(), task.example()
    # Batches are made when asked for, so that the data is not what fills the memory.
    calls = task.calibration_calls(count, batch)
    if method_name == "float":
        with torch.no_grad():
            model(*example)
            before = _reset_peak()
            for call in calls:
                model(*call()[0])
    else:
        method = METHODS[method_name]()
        method.prepare(model, example)
        before = _reset_peak()
        method.calibrate(_Lazy(calls))
    return {"before_mb": before, "peak_mb": _status("VmHWM")}


class _Lazy:
    """A sequence of batches of which one is in memory at a time."""

    def __init__(self, calls: Any) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Any:
        return (call()[0] for call in self.calls)


def _reset_peak() -> float:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--method", choices=["float", *METHODS], required=True)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(measure(options.task, options.method, options.count, options.batch)))


if __name__ == "__main__":
    main()
