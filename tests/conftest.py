"""What every test may rely on: fixed seeds, a fair share of the cores, and the data folder when set."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import settings

SEED = 0

# Without a device, torch.manual_seed keeps a formatted stack for the time when there is one: a millisecond per test.
seed_torch = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed

# The same examples on every machine, whatever its environment says; a time limit per example would fail on a busy one.
# Random search belongs in benchmarks/robustness, and what it finds becomes a fixed case here.
settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Divide the cores among xdist's workers and what they start; each would otherwise start a thread per core."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    threads = max(1, usable_cores() // workers)
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read by child processes only: here torch is loaded already


def usable_cores() -> int:
    """The cores this process may run on, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Import every test file from the same random numbers: what it makes at the top is the same in every run."""
    seed_everything()


def pytest_collection_finish() -> None:
    """Nothing that exists by now is garbage later: tests that collect it look at their own objects alone."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start every test, and the fixtures made for it, from the same random numbers."""
    seed_everything()


def seed_everything() -> None:
    random.seed(SEED)
    numpy.random.seed(SEED)
    seed_torch(SEED)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the datasets and trained weights. Tests that ask for it are skipped without one."""
    named = os.environ.get("SPARSEBIT_DATA")
    if not named:
        pytest.skip("needs the data folder: set SPARSEBIT_DATA=/path/to/data")
    folder = Path(named).expanduser().resolve()
    if not folder.is_dir():
        pytest.fail(f"SPARSEBIT_DATA names {folder}, which is not a folder; correct or unset it")
    return folder
