"""What was compiled is started again only for arguments of the same kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit.kernels import launch as launch_module
from sparsebit.kernels.launch import PreparedLaunch, launch


class Compiled:
    """Stands for what Triton compiled."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.started: list[Any] = []

    def run(self, *arguments: Any) -> None:
        self.started.append(arguments)


class Kernel:
    """Stands for a Triton function: counts how often it is asked to look up what it compiled."""

    def __init__(self) -> None:
        self.looked_up, self.compiled = 0, Compiled()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def start(*arguments: Any, num_warps: int) -> Compiled:
            self.looked_up += 1
            return self.compiled

        return start


def test_the_second_launch_skips_the_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "current_stream", lambda device: 77)
    kernel, x = Kernel(), torch.zeros(32)
    launch(kernel, 3, (x,), (0.5,), (32, True))
    launch(kernel, 3, (x,), (0.25,), (32, True))  # numbers in floating point are never compiled in
    assert kernel.looked_up == 1
    (started,) = kernel.compiled.started
    assert started == (3, 1, 1, 77, "function", "metadata", None, None, None, x.data_ptr(), 0.25, 32, True)


def test_other_kinds_of_arguments_are_looked_up_again() -> None:
    kernel, x = Kernel(), torch.zeros(32)
    launch(kernel, 3, (x,), (), (32,))
    launch(kernel, 3, (x.half(),), (), (32,))
    launch(kernel, 3, (x[1:],), (), (32,))  # begins at a multiple of 4 bytes
    launch(kernel, 3, (x,), (), (31,))
    launch(kernel, 3, (x,), (), (32,), warps=8)
    assert kernel.looked_up == 5 and kernel.compiled.started == []


def test_a_prepared_launch_looks_up_once_and_adds_addresses_and_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_module, "current_stream", lambda device: 77)
    kernel, x = Kernel(), torch.zeros(32)
    start = PreparedLaunch(kernel, 3, (32, True), device=-1)
    start((x, x), (0.5,))
    start((x, x), (0.25,))
    assert kernel.looked_up == 1
    address = x.data_ptr()
    (started,) = kernel.compiled.started
    assert started == (
        3,
        1,
        1,
        77,
        "function",
        "metadata",
        None,
        None,
        None,
        address,
        address,
        0.25,
        32,
        True,
    )
    start((x, x[1:]), (0.25,))  # not compiled for memory that begins there
    assert kernel.looked_up == 2 and len(kernel.compiled.started) == 1
