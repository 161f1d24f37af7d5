"""Bypass dropout in a graph that is in evaluation mode."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from sparsebit.graph.effects import read_flag
from sparsebit.graph.ops import bind
from sparsebit.graph.passes.edit import replace_node


def remove_dropout(gm: GraphModule) -> int:
    """Bypass every dropout that does nothing in evaluation mode; the graph then has no dropout in training either.

    Example:
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Dropout()))
        >>> remove_dropout(gm.train()), remove_dropout(gm.eval())
        (0, 1)
    """
    changes = 0
    for node in list(gm.graph.nodes):
        if (call := bind(gm, node)) is not None and why_not_remove_dropout(gm, node) is None:
            replace_node(node, call.activations[0])
            changes += 1
    if changes:
        gm.recompile()
    return changes


def why_not_remove_dropout(gm: GraphModule, node: Node) -> str | None:
    """The reason a dropout must stay, or None."""
    call = bind(gm, node)
    if call is None or call.spec.family != "dropout":
        return f"{node.name} is not a dropout"
    if len(call.activations) != 1:
        return f"{node.name} does not read one tensor of the graph"
    if "native" in str(getattr(node.target, "__name__", "")):
        return f"{node.name} returns its mask as well"
    if gm.training:
        return "the graph is in training mode"
    if call.module is not None:
        if call.module._forward_hooks or call.module._forward_pre_hooks:
            return f"{node.target} has hooks"
        return f"{node.target} is itself in training mode" if call.module.training else None
    if read_flag(gm, call.arguments.get("p")) == 0:
        return None
    flag = call.arguments.get("training", True)
    drops = read_flag(gm, flag)
    if drops is None:
        return f"whether {node.name} drops is known only at run time: its training flag is computed by {flag}"
    return f"{node.name} is active in both modes: it was called with training=True" if drops else None
