"""Restore the additions of recovery steps to a graph, from the names in a saved state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.fx import GraphModule

from sparsebit.batches import device_of
from sparsebit.quantization.algorithms.equalization import home_of_limits, limit_channels
from sparsebit.quantization.algorithms.layers import find_quantized_layers


def restore_edits(gm: GraphModule, state: Mapping[str, Tensor]) -> int:
    """Add the biases of layers and the limits of clips that are in the state; returns how many."""
    made = 0
    for layer in list(find_quantized_layers(gm)):
        if layer.call.bias_name is None and layer.new_bias in state:
            layer.set(bias=state[layer.new_bias].to(layer.weight.device))
            made += 1
    for node in list(gm.graph.nodes):
        limits = state.get(f"{home_of_limits(node)}.limits")
        if limits is not None and node.op.startswith("call_"):
            limit_channels(gm, node, limits.to(device_of(gm)))
            made += 1
    if made:
        gm.recompile()
    return made
