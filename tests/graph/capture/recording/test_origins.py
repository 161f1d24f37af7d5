"""What a recorded value depends on follows from its operator and its inputs."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.graph.capture.recording.names import Names
from sparsebit.graph.capture.recording.origins import Origins
from sparsebit.graph.capture.recording.tape import Tape
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.ops import OPS
from sparsebit.graph.ops.lookup import find_call


def test_what_follows_from_data_depends_on_data() -> None:
    tape = Tape(Names(nn.Module()), CaptureReport())
    origins, x = Origins(), tape.add_placeholder("x", torch.ones(2))
    origins.data.add(x)
    results = {name: tape.call(torch.relu, x) for name in ("relu", "zeros_like", "nonzero", "rand_like")}
    for name, node in results.items():
        origins.inherit(node, OPS[name], [x])
    assert results["relu"] in origins.data and results["zeros_like"] not in origins.data
    assert results["nonzero"] in origins.counted and results["rand_like"] in origins.random
    after, unknown = tape.call(torch.relu, results["rand_like"]), tape.call(torch.relu, x)
    origins.inherit(after, OPS["relu"], [results["rand_like"]])
    origins.inherit(unknown, None, [x])
    assert after in origins.random and after not in origins.data and unknown in origins.data
    assert "random" in results["rand_like"].meta and "random" not in after.meta  # only the first draws


def test_rows_are_counted_where_the_arguments_say_so() -> None:
    tape, origins = Tape(Names(nn.Module()), CaptureReport()), Origins()
    x, mask = tape.add_placeholder("x", torch.ones(2)), tape.add_placeholder("mask", torch.ones(2) > 0)
    calls = {
        tape.call(operator.getitem, x, mask): True,
        tape.call(operator.getitem, x, slice(1)): False,
        tape.call(torch.repeat_interleave, x, mask): True,
        tape.call(torch.repeat_interleave, x): True,
        tape.call(torch.repeat_interleave, x, 2): False,
    }
    for node in calls:
        found = find_call(node, None)
        assert found is not None
        origins.inherit(node, found.spec, [x])
    assert {node: node in origins.counted for node in calls} == calls


@pytest.mark.parametrize(
    ("function", "reads"),
    [
        *(
            (getattr(torch.Tensor, name), False)
            for name in ("dim", "stride", "is_contiguous", "__repr__", "data_ptr")
        ),
        *(
            (getattr(torch.Tensor, name), True)
            for name in ("item", "tolist", "__bool__", "numpy", "is_nonzero")
        ),
    ],
)
def test_functions_that_need_numbers_are_told_by_trying(function: Any, reads: bool) -> None:
    assert Origins().reads_numbers(function, (torch.ones(()),), {}) is reads
