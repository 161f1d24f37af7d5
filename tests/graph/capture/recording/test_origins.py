"""What a recorded value depends on follows from its operator and its inputs."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.capture.recording.names import Names
from sparsebit.graph.capture.recording.origins import Origins
from sparsebit.graph.capture.recording.tape import Tape
from sparsebit.graph.capture.report import CaptureReport


def test_what_follows_from_data_depends_on_data() -> None:
    tape = Tape(Names(nn.Module()), CaptureReport())
    origins, x = Origins(), tape.add_placeholder("x", torch.ones(2))
    origins.data.add(x)
    results = {name: tape.call(torch.relu, x) for name in ("relu", "zeros_like", "nonzero", "rand_like")}
    for name, node in results.items():
        origins.inherit(node, name, [torch.ones(2)], [x])
    assert results["relu"] in origins.data and results["zeros_like"] not in origins.data
    assert results["nonzero"] in origins.counted and results["rand_like"] in origins.random
