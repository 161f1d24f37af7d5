"""Starts a function of a test module, or a script, on several processes, as torchrun would, and waits for them."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed

ROOT = Path(__file__).resolve().parent.parent
Work = Callable[[int, str], None]

needs_distributed = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without distributed"
)


def start_ranks(work: Work, ranks: Sequence[int], folder: Path) -> list[subprocess.Popen[str]]:
    """``work(rank, folder)`` in a process for each rank."""
    module = Path(work.__code__.co_filename).relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    program = f"from {module} import {work.__name__} as work; work({{}}, {str(folder)!r})"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program.format(rank)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks
    ]


def wait_for(
    processes: Sequence[subprocess.Popen[str]], killed: Sequence[int] = (), timeout: float = 600
) -> None:
    """Until all have ended, those of ``killed`` by a signal; one that fails or takes too long fails the test."""
    try:
        for number, process in enumerate(processes):
            output, _ = process.communicate(timeout=timeout)
            assert process.returncode == (-signal.SIGKILL if number in killed else 0), output
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run_script(words: Sequence[str], count: int, folder: Path, path: Sequence[Path] = ()) -> str:
    """What the first of ``count`` processes of ``python *words`` prints; they find the variables that torchrun sets.

    The store at which they meet is here, as torchrun's is in its own process. Processes that do not end say where they
    are before they are ended.
    """
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=300), wait_for_workers=False
    )
    shared = os.environ | {
        **{"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "TORCHELASTIC_USE_AGENT_STORE": "True"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)},
        **{"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "PYTHONFAULTHANDLER": "1"},
        **{"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    }
    outputs = [folder / f"output.{rank}" for rank in range(count)]
    processes = []
    for rank, output in enumerate(outputs):
        with open(output, "w", encoding="utf-8") as file:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, *words]
            processes.append(
                subprocess.Popen(command, cwd=folder, env=shared | own, stdout=file, stderr=subprocess.STDOUT)
            )
    try:
        for process in processes:
            process.wait(300)
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)
            process.wait()
    printed = [output.read_text(encoding="utf-8", errors="replace") for output in outputs]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(printed)
    return printed[0]


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
