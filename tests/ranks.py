"""Starts a function of a test module, or a script, on several processes, as torchrun would, and waits for them."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.forks import ROOT, Program, run_programs

Work = Callable[[int, str], None]

needs_distributed = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without distributed"
)


def run_ranks(work: Work, ranks: Sequence[int], folder: Path, killed: Sequence[int] = ()) -> None:
    """``work(rank, folder)`` in a process for each rank, until all have ended, those of ``killed`` by a signal."""
    module = Path(work.__code__.co_filename).relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    words = ["-m", "tests.ranks", module, work.__name__, str(folder)]
    codes, printed = run_programs([Program([*words, str(rank)]) for rank in ranks], folder)
    assert codes == [-signal.SIGKILL if number in killed else 0 for number in range(len(ranks))], printed


def run_script(words: Sequence[str], count: int, folder: Path, path: Sequence[Path] = ()) -> str:
    """What the first of ``count`` processes of ``python *words`` prints; they find the variables that torchrun sets.

    The store at which they meet is here, as torchrun's is in its own process.
    """
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=300), wait_for_workers=False
    )
    shared = {
        **{"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_USE_AGENT_STORE": "True"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)},
        **{"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "CUDA_VISIBLE_DEVICES": ""},
    }
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    codes, printed = run_programs([Program(words, shared | one) for one in own], folder, timeout=300)
    assert codes == [0] * count, "\n".join(printed)
    return printed[0]


def watch_writes(module: Any) -> list[str]:
    """The names of the folders that a module writes from now on, by its ``write_folder``."""
    writes: list[str] = []
    write = module.write_folder

    def watched(place: Path, *args: Any) -> None:
        writes.append(place.name)
        write(place, *args)

    module.write_folder = watched
    return writes


def join_group(rank: int, size: int, folder: str, name: str = "store") -> None:
    """Make this process one of a group; processes meet at a file in the folder."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=size
    )
    atexit.register(leave_group)  # its threads can abort a process that ends with it


def leave_group() -> None:
    """Does nothing where the group is gone."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(int(sys.argv[4]), sys.argv[3])
