"""Values become arguments of nodes, and tensors are known by identity."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.recording.names import Names
from sparsebit.graph.capture.recording.tape import Tape
from sparsebit.graph.capture.report import CaptureReport


def make() -> tuple[Tape, nn.Linear]:
    model = nn.Linear(2, 2)
    return Tape(Names(model), CaptureReport()), model


def test_parameters_are_attributes_and_strangers_constants() -> None:
    tape, model = make()
    stranger = torch.ones(3)
    assert tape.node_of(model.weight).target == "weight" and tape.node_of(model.weight) is tape.node_of(
        model.weight
    )
    assert tape.node_of(stranger).target == "_tensor_constant0" and tape.unknown_constants == [
        "_tensor_constant0"
    ]
    assert tape.report.of_kind("constant")


def test_arguments_keep_their_structure() -> None:
    tape, model = make()
    argument = tape.argument({"a": [model.bias, 1, slice(0, 2)], "b": float})
    assert argument["a"][0] is tape.node_of(model.bias) and argument["a"][1:] == [1, slice(0, 2, None)]
    assert argument["b"] is torch.float64


def test_what_a_graph_cannot_hold_is_refused() -> None:
    with pytest.raises(CaptureError, match="an operator was given an object, which a graph cannot hold"):
        make()[0].argument(object())
