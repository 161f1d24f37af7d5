"""Statistics of layer results, from the batch norms after the layers."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule

from sparsebit.graph.ops import bind, op_name
from sparsebit.graph.ops.spec import fetch_tensor


def has_batch_norm(gm: GraphModule) -> bool:
    """Whether the graph has a batch norm, as a module or a function."""
    return any(op_name(gm, node) == "batch_norm" for node in gm.graph.nodes)


def statistics_of(gm: GraphModule) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of each layer's result after its batch norm, by the layer's node.

    They are the batch norm's own shift and gain, and are gone once it is folded.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for node in gm.graph.nodes:
        call = bind(gm, node) if node.op.startswith("call_") else None
        if call is None or call.spec.name != "batch_norm" or not (call.weight_name and call.bias_name):
            continue
        layer = bind(gm, call.activations[0])
        if layer is None or layer.spec.family not in ("conv", "linear") or len(layer.node.users) > 1:
            continue  # it is not folded into what it reads
        mean, std = (fetch_tensor(gm, name).detach().clone() for name in (call.bias_name, call.weight_name))
        found[call.activations[0].name] = (mean, std.abs())
    return found
