"""The graph of a quantized model for drawing: quantizers and parameters become text on the operators."""

from __future__ import annotations

import operator

from torch.fx import Node

from sparsebit.analysis import ErrorProfile, LayerError
from sparsebit.graph.ops import op_name
from sparsebit.graph.value import TensorInfo, tensors_in
from sparsebit.quantization import QuantModel
from sparsebit.quantization.modules.weights import quantizer_at
from sparsebit.report.content import GraphNode


def graph_nodes(qmodel: QuantModel, errors: ErrorProfile) -> tuple[GraphNode, ...]:
    """Inputs, operators and the output, in the order of the graph."""
    gm = qmodel.model
    layers = {layer.node: layer for layer in errors.layers}
    places: dict[Node, tuple[int, ...]] = {}  # which boxes a value comes from
    found: list[GraphNode] = []
    for node in gm.graph.nodes:
        inputs = tuple(dict.fromkeys(place for source in node.all_input_nodes for place in places[source]))
        if quantizer_at(gm, node) is not None or _computes_nothing(node):
            places[node] = inputs
            continue
        places[node] = (len(found),)
        layer = layers.get(node.name)
        found.append(
            GraphNode(
                name=str(node.target) if node.op == "call_module" else node.name,
                op=op_name(gm, node) or node.op,
                inputs=inputs,
                kind="input" if node.op == "placeholder" else "output" if node.op == "output" else "op",
                shape=_shape(node),
                bits=_bits(layer),
                sqnr=layer.together.sqnr_db if layer is not None else None,
                layer=layer.name if layer is not None else None,
            )
        )
    return tuple(found)


def _bits(layer: LayerError | None) -> str:
    if layer is None:
        return ""
    weight = f"W{layer.weight.bits} " if layer.weight is not None else ""
    return weight + (f"A{layer.inputs[0].bits}" if layer.inputs else "A float")


def _computes_nothing(node: Node) -> bool:
    """Parameters, sizes, devices, assertions, and the parts of a result that is a tuple."""
    if node.op in ("placeholder", "output") or "value" not in node.meta:
        return node.op == "get_attr"
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, Node) and not isinstance(source.meta.get("value"), TensorInfo)
    return node.op == "get_attr" or not any(True for _ in tensors_in(node.meta["value"]))


def _shape(node: Node) -> str:
    value = node.meta.get("value")
    return "×".join(map(str, value.shape)) if isinstance(value, TensorInfo) else ""
