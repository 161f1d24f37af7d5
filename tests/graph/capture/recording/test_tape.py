"""Values become arguments of nodes, and tensors are known by identity."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.recording.arguments import items_in, tensors_in
from sparsebit.graph.capture.recording.origins import Origins
from sparsebit.graph.capture.recording.tape import Tape
from sparsebit.graph.capture.recording.writes import functional_call
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.functional import overwrite, set_item


def make() -> tuple[Tape, nn.Linear]:
    model = nn.Linear(2, 2)
    return Tape(model, CaptureReport()), model


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
    with pytest.raises(CaptureError, match="an operator was given a object, which a graph cannot hold"):
        make()[0].argument(object())


def test_nested_arguments_are_walked() -> None:
    x = torch.ones(1)
    assert list(items_in(({"a": 1}, [slice(2, None)]))) == [1, 2, None, None]
    assert tensors_in({"a": [x]}, 3) == [x]


def test_what_follows_from_data_depends_on_data() -> None:
    tape, _ = make()
    origins, x = Origins(), tape.add_placeholder("x", torch.ones(2))
    origins.data.add(x)
    results = {name: tape.call(torch.relu, x) for name in ("relu", "zeros_like", "nonzero", "rand_like")}
    for name, node in results.items():
        origins.inherit(node, name, [torch.ones(2)], [x])
    assert results["relu"] in origins.data and results["zeros_like"] not in origins.data
    assert results["nonzero"] in origins.counted and results["rand_like"] in origins.random


def test_writes_have_functional_twins() -> None:
    x, y = torch.ones(2), torch.ones(2)
    assert functional_call(torch.Tensor.add_, "add_", (x, y), {}, x) == (torch.Tensor.add, (x, y), {})
    assert functional_call(torch.Tensor.__setitem__, "__setitem__", (x, 0, 1.0), {}, x) == (
        set_item,
        (x, 0, 1.0),
        {},
    )
    assert functional_call(torch.Tensor.copy_, "copy_", (x, y), {}, x) == (overwrite, (x, y), {})
    assert functional_call(torch.Tensor.eq_, "eq_", (x, y), {}, x) is None
