"""Two processes, each with half of the data, end with the state of one that saw it all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from sparsebit.quantization.observers import OBSERVERS, Observer, merge_across_processes
from tests.quantization.observers.data import draw, feed

ROOT = Path(__file__).resolve().parents[3]


def batches(rank: int) -> list[Tensor]:
    """Of very different size, so that histograms must grow to meet."""
    x = draw("laplace", 6000, seed=rank).view(3, -1) * 10.0**rank
    return list(x.split(700, dim=1))


def states(rank: int, observers: dict[str, Observer[Any]]) -> dict[str, Any]:
    return {name: feed(observer, batches(rank)) for name, observer in observers.items()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    observers = {name: OBSERVERS[name]() for name in OBSERVERS}
    for name, state in states(rank, observers).items():
        merged = merge_across_processes(observers[name], state)
        # One that saw nothing takes part as well.
        late = observers[name].init(batches(0)[0]) if rank else state
        alone = merge_across_processes(observers[name], late)
        torch.save((tuple(merged), tuple(alone)), f"{folder}/{name}.{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    program = f"from {__name__} import work; work({{}}, {str(tmp_path)!r})"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 0, printed.decode()
    for name in OBSERVERS:
        observer = OBSERVERS[name]()
        everything = feed(observer, batches(0) + batches(1))
        first = feed(observer, batches(0))
        results = [torch.load(tmp_path / f"{name}.{rank}", weights_only=True) for rank in range(2)]
        for merged, alone in results:
            for got, expected in zip(merged, everything, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-5 if observer.by_sample else 0, atol=0)
            for got, expected in zip(alone, first, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-5 if observer.by_sample else 0, atol=0)
        assert all(a.equal(b) for a, b in zip(results[0][0], results[1][0], strict=True))


def test_without_processes_nothing_changes() -> None:
    observer = OBSERVERS["minmax"]()
    state = feed(observer, batches(0))
    assert merge_across_processes(observer, state) is state
