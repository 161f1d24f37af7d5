"""Bypass ``nn.Identity``."""

from __future__ import annotations

from torch import nn
from torch.fx import GraphModule, Node

from sparsebit.graph.passes.edit import only_input, replace_node


def remove_identity(gm: GraphModule) -> int:
    """Bypass identities, which would hide conv-bn pairs from the passes after this one.

    An identity with an attribute ``remove = False`` stays: it marks a place on purpose, such as a point to
    quantize.

    Example:
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Identity()))
        >>> remove_identity(gm), [node.name for node in gm.graph.nodes]
        (1, ['input_1', '_0', 'output'])
    """
    changes = 0
    for node in list(gm.graph.nodes):
        source = only_input(node)
        if source is not None and _is_identity(gm, node):
            replace_node(node, source)
            changes += 1
    if changes:
        gm.recompile()
    return changes


def _is_identity(gm: GraphModule, node: Node) -> bool:
    if node.op != "call_module":
        return False
    module = gm.get_submodule(str(node.target))
    if not isinstance(module, nn.Identity) or type(module).forward is not nn.Identity.forward:
        return False
    watched = module._forward_hooks or module._forward_pre_hooks
    return getattr(module, "remove", True) is not False and not watched
