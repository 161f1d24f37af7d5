"""The fast engine: weights stay outside the file, and markers are in it."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit import capture
from sparsebit.export.translate import program_engine, script_engine
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import DOMAIN, OP_TYPE, mark_tensor, quantizers_of
from sparsebit.export.translate.request import TranslationRequest
from sparsebit.quantization.switches import substituted
from tests.export.nets import quantized


def request(flat: FlatGraph, x: torch.Tensor, opset: int = 20) -> TranslationRequest:
    return TranslationRequest(flat.eval(), [x], ["x"], ["y"], [{}], opset)


def test_weights_are_inputs_and_none_is_copied() -> None:
    net, x = nn.Linear(4, 2).eval(), torch.zeros(2, 4)
    proto, weights = script_engine.translate(request(FlatGraph(capture(net, x)), x), {"x": {0: "batch"}})
    assert {value.name for value in proto.graph.input} == {"x", *weights} and not proto.graph.initializer
    assert {tensor.data_ptr() for tensor in weights.values()} == {p.data_ptr() for p in net.parameters()}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_both_engines_keep_the_markers() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    flat = FlatGraph(quantized(nn.Sequential(nn.Linear(4, 2)), x).model)
    asked = request(flat, x)
    with substituted(quantizers_of(flat), mark_tensor):
        proto, _ = script_engine.translate(asked, {})
        model = program_engine.translate(asked, {})
    found = [node for node in proto.graph.node if node.domain == DOMAIN]
    assert {node.op_type for node in found} == {OP_TYPE}
    marked = [node for node in model.graph if node.domain == DOMAIN]
    assert {node.attributes["key"].value for node in marked} == {
        node.attribute[0].s.decode() for node in found
    }
    assert len(marked) == len(found) == 2
