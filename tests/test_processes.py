"""Processes that share values and tensors, fail together, and end where one of them has died."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed

from sparsebit.errors import SparsebitError
from sparsebit.processes import (
    ProcessError,
    failing_together,
    gather_tensor,
    gather_values,
    is_distributed,
    max_tensors,
    raise_together,
    rank,
    require_same,
    share_tensors,
    sum_tensors,
    take_from_first,
    world_size,
)
from tests.ranks import join_group, needs_distributed, run_ranks

SIZE = 3


def work(number: int, folder: str) -> None:
    join_group(number, SIZE, folder)
    found: dict[str, object] = {"rank": rank(), "size": world_size(), "values": gather_values(number * 10)}
    found["tensors"] = [one.tolist() for one in gather_tensor(torch.arange(4)[::2] + number)]
    summed, largest = torch.full((2,), float(number)), torch.tensor([number, -number])
    sum_tensors([summed])
    max_tensors([largest])
    found["reduced"] = [summed.tolist(), largest.tolist()]
    # Of different types and sizes, and one process has none.
    own = {
        0: {4: torch.tensor([[1.5]], dtype=torch.bfloat16), 0: torch.tensor([True, False])},
        1: {},
        2: {1: torch.zeros(0, 3), 2: torch.tensor(9)},
    }[number]
    found["shared"] = [(str(one.dtype), one.tolist()) for one in share_tensors(own)]
    first = torch.full((2, 2), float(number)).T
    take_from_first([first])
    found["first"] = first.tolist()
    messages = []
    for failing in (0, 2):  # one process fails, the others wait for something else of it
        try:
            with failing_together():
                if number == failing:
                    raise ValueError(f"no luck on {number}")
                gather_values("and the others?")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    for values in (["a text", torch.ones(2)], [torch.arange(3) + (number == 1)], [f"text {number == 2}"]):
        try:
            require_same(values, "the model")
            messages.append("the same")
        except SparsebitError as error:
            messages.append(error.message)
    found["messages"] = messages
    try:  # and all can go on after it
        found["after"] = gather_values(number)
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        gather_values("is anyone missing?")
    except ProcessError as error:
        found["dead"] = str(error)
    Path(f"{folder}/{number}.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # the group cannot be left in order, as it is no longer complete


@needs_distributed
def test_what_one_process_knows_all_know(tmp_path: Path) -> None:
    run_ranks(work, range(SIZE), tmp_path, killed=[1])
    for number in (0, 2):
        found = json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8"))
        assert (found["rank"], found["size"], found["values"]) == (number, SIZE, [0, 10, 20])
        assert found["tensors"] == [[0, 2], [1, 3], [2, 4]]
        assert found["reduced"] == [[3.0, 3.0], [2, 0]]
        assert found["shared"] == [
            ["torch.bool", [True, False]],
            ["torch.float32", []],
            ["torch.int64", 9],
            ["torch.bfloat16", [[1.5]]],
        ]
        assert found["first"] == [[0.0, 0.0], [0.0, 0.0]]
        *failed, same, tensors, texts = found["messages"]
        assert same == "the same" and tensors == texts == "the model differs between processes"
        for failing, message in zip((0, 2), failed, strict=True):
            if number == failing:
                assert message == f"ValueError: no luck on {failing}"
            else:
                assert message.startswith("ProcessError: this run failed on another process: no luck on")
                assert f"where: rank {failing}" in message
        assert found["after"] == [0, 1, 2]
        assert found["dead"].startswith("another process of this run has ended, or does not answer")
        assert re.search("got:   (Connection|Read error)", found["dead"])  # without places in gloo's code
        assert "typically" not in found["dead"]
        assert f"rank {number} of 3" in found["dead"] and "start all of them again" in found["dead"]


def test_one_process_alone() -> None:
    assert (is_distributed(), rank(), world_size()) == (False, 0, 1)
    tensor = torch.arange(3.0)
    assert gather_values("here") == ["here"] and gather_tensor(tensor) == [tensor]
    sum_tensors([tensor])
    max_tensors([tensor])
    take_from_first([tensor])
    assert tensor.tolist() == [0, 1, 2]
    assert [one.item() for one in share_tensors({3: torch.tensor(1), 2: torch.tensor(0)})] == [0, 1]
    raise_together(None)
    require_same([tensor, "a text"], "it")
    with pytest.raises(ValueError, match="mine"), failing_together():
        raise ValueError("mine")
