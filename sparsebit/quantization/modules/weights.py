"""Find the quantizer of each weight."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.quantization.quantizers import Quantizer


def quantizer_at(gm: GraphModule, node: Node) -> Quantizer | None:
    """The quantizer that a node calls, if it calls one."""
    module = gm.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if isinstance(module, Quantizer) else None


def weights_read(gm: GraphModule, node: Node) -> Iterator[tuple[str, Quantizer]]:
    """The quantized weights of an operator, as (path, quantizer): held in its module, or read through a quantizer."""
    if not node.op.startswith("call_"):
        return
    if node.op == "call_module":
        module = gm.get_submodule(str(node.target))
        if isinstance(module, Quantizer):
            return
        quantizer, weight = (getattr(module, name, None) for name in ("weight_quantizer", "weight"))
        if isinstance(quantizer, Quantizer) and isinstance(weight, Tensor):
            yield f"{node.target}.weight", quantizer
    for source in node.all_input_nodes:
        found = quantizer_at(gm, source)
        if found is not None and found.side == "W":
            yield str(source.all_input_nodes[0].target), found


def quantized_weights(gm: GraphModule) -> dict[str, Quantizer]:
    """Every quantized weight of a graph: its quantizer by the path of the tensor."""
    return {path: quantizer for node in gm.graph.nodes for path, quantizer in weights_read(gm, node)}
