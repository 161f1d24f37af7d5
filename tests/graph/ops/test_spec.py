"""What an operator may say of itself, and what a call can be asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from sparsebit.errors import GraphError, RegistryError
from sparsebit.graph.ops import OpSpec, bind
from sparsebit.graph.ops.spec import fetch_tensor, parse_signature, place, shape_of
from tests.graph.ops.sampling import one_node, parameter, real, sample


def test_signatures_read_like_a_def() -> None:
    signature = parse_signature("input, *size, dtype=None, scale=(1, 2.5)")
    assert signature.names == ("input", "size", "dtype", "scale")
    assert signature.defaults == {"dtype": None, "scale": (1, 2.5)}
    assert signature.variadic == "size"
    assert parse_signature("") == ((), {}, None)
    assert parse_signature("a, b=1, *, c=2, d").names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": "kernel"}, "kernel: not an argument"),
        ({"activations": ("left", "right")}, "left, right: not an argument"),
        ({"weight_axes": (0, 1)}, "weight_axes without a weight"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        OpSpec(name="odd", targets=(), **fields)


def test_shapes_come_from_the_record_or_from_the_parameter_itself() -> None:
    call = one_node(sample(F.conv2d, real(2, 4, 8, 8), parameter(6, 4, 3, 3))).call
    assert call.shape("input") == (2, 4, 8, 8)
    assert call.shape("weight") == (6, 4, 3, 3)
    assert call.output_shape == (2, 6, 6, 6)
    module = one_node(sample(nn.Conv2d(4, 6, 3), real(2, 4, 8, 8))).call
    assert module.shape("weight") == (6, 4, 3, 3)


def test_a_missing_record_says_how_to_get_one() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 6)))
    node = next(n for n in gm.graph.nodes if n.op == "call_module")
    node.meta |= {"module_path": "net.head", "source": ("net.py", 12, "forward")}
    call = bind(gm, node)
    assert call is not None
    with pytest.raises(
        GraphError, match=r"no shape is recorded[\s\S]*'_0' in net.head at net.py:12[\s\S]*example inputs"
    ):
        _ = call.output_shape
    with pytest.raises(GraphError, match="no shape is recorded"):
        _ = call.macs


def test_an_argument_without_a_tensor_has_no_shape() -> None:
    call = one_node(sample(F.conv2d, real(2, 4, 8, 8), parameter(6, 4, 3, 3))).call
    with pytest.raises(GraphError, match=r"bias holds no tensor[\s\S]*None"):
        call.shape("bias")


def test_names_lead_to_tensors_at_any_depth() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 3)))
    net.register_buffer("table", torch.zeros(5))
    gm = fx.symbolic_trace(net)
    assert fetch_tensor(gm, "0.0.weight").shape == (3, 2)
    graph = fx.Graph()
    node = graph.get_attr("table")
    owner = fx.GraphModule(net, graph)
    assert shape_of(owner, node) == (5,)
    assert place(node) == "node 'table'"


def test_results_of_several_tensors_give_the_first_shape() -> None:
    assert one_node(sample(nn.LSTM(4, 6), real(5, 3, 4))).call.output_shape == (5, 3, 6)
