"""A digest of a graph that is the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping

import torch
from torch.fx import GraphModule, Node

from sparsebit.graph.ops import op_name


def graph_digest(gm: GraphModule, *, without: Container[int] = ()) -> str:
    """A digest of what a graph computes: operators, arguments and shapes of parameters, but no numbers.

    Saved models contain it, and loading compares it: saved numbers only fit the graph they were made for.

    Args:
        gm: any graph module.
        without: ids of parameters that are ignored, because their shape is not part of the architecture.

    Example:
        >>> one, other = (torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, n))) for n in (3, 4))
        >>> graph_digest(one) == graph_digest(one) != graph_digest(other)
        True
    """
    lines = []
    for node in gm.graph.nodes:
        target = node.target if isinstance(node.target, str) else op_name(gm, node) or _spell(node.target)
        lines.append(f"{node.op} {node.name} {target} {_spell(node.args)} {_spell(node.kwargs)}")
    named = gm.named_parameters(remove_duplicate=False)
    own = (f"{name} {tuple(p.shape)}" for name, p in named if id(p) not in without)
    return hashlib.sha256("\n".join([*lines, *own]).encode()).hexdigest()


def _spell(value: object) -> str:
    """A text that is the same in every process: the repr of some objects contains their address."""
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_spell, value))})"
    if isinstance(value, Mapping):
        return f"({', '.join(f'{_spell(key)}: {_spell(item)}' for key, item in value.items())})"
    if isinstance(value, slice):
        return f"{_spell(value.start)}:{_spell(value.stop)}:{_spell(value.step)}"
    if isinstance(value, (Node, bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        return str(value)
    owner = getattr(value, "__self__", None)
    kind = owner if isinstance(owner, type) else value if hasattr(value, "__qualname__") else type(value)
    return (
        f"{getattr(kind, '__module__', 'method')}.{kind.__qualname__}"  # methods written in C have no module
    )
