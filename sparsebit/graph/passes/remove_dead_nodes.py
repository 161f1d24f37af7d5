"""Remove nodes that nothing depends on."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from sparsebit.graph.effects import is_effect
from sparsebit.graph.ops import find_op

_PURE_HOMES = ("torch", "sparsebit", "_operator", "operator", "math", "builtins")


def remove_dead_nodes(gm: GraphModule) -> int:
    """Remove every node that neither an output nor an effect depends on.

    Placeholders stay, because they are the call signature; parameters and buffers stay in the state dict even if
    nothing reads them. Nodes that may have side effects stay too.
    """
    alive = _alive(gm)
    dead = [node for node in gm.graph.nodes if node not in alive]
    for node in reversed(dead):
        gm.graph.erase_node(node)
    if dead:
        gm.recompile()
    return len(dead)


def why_not_remove_node(gm: GraphModule, node: Node) -> str | None:
    """The reason a node must stay even if nothing reads it, or None."""
    if node.op == "placeholder":
        return f"{node.name} is part of the call signature"
    if is_effect(gm, node):
        return f"{node.name} has a side effect"
    if node.op == "get_attr":
        return None
    spec = find_op(gm, node)
    if spec is not None:
        draws = spec.random and gm.training
        return f"{node.name} draws random numbers, and the graph is in training mode" if draws else None
    if node.op == "call_module":
        known = _is_from_torch(type(gm.get_submodule(str(node.target))))
        return None if known else f"{node.name} may change its own state"
    if node.op == "call_method" or isinstance(node.target, torch._ops.OpOverload):
        return None
    name = getattr(node.target, "__qualname__", node.target)
    return None if _is_from_torch(node.target) else f"nothing is known about {name}"


def _alive(gm: GraphModule) -> set[Node]:
    waiting = [node for node in gm.graph.nodes if why_not_remove_node(gm, node) is not None]
    alive = set(waiting)
    while waiting:
        new = [source for source in waiting.pop().all_input_nodes if source not in alive]
        alive.update(new)
        waiting += new
    return alive


def _is_from_torch(target: object) -> bool:
    if getattr(target, "__objclass__", None) is not None:  # a method of Tensor
        return True
    home = getattr(target, "__module__", None)
    return home is None or home.split(".")[0] in _PURE_HOMES
