"""``x.unbind(d)[i]`` is ``torch.select(x, d, i)``."""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from sparsebit.graph.ops import bind, op_name
from sparsebit.graph.passes.edit import inherit_meta, replace_node
from sparsebit.graph.value import TensorInfo


def unbind_to_select(gm: GraphModule) -> int:
    """Turn every unbind whose parts are picked one by one into selects, which carry one tensor each.

    Returns the number of parts. An unbind that is also used as a tuple is not changed.
    """
    changes = 0
    for unbind in [node for node in gm.graph.nodes if op_name(gm, node) == "unbind"]:
        if why_not_select(gm, unbind) is None:
            changes += _select_parts(gm, unbind)
    if changes:
        gm.recompile()
    return changes


def why_not_select(gm: GraphModule, unbind: Node) -> str | None:
    """The reason an unbind must stay, or None."""
    call = bind(gm, unbind)
    if call is None or call.spec.name != "unbind":
        return f"{unbind.name} is not an unbind"
    if len(call.activations) != 1 or not isinstance(call.arguments.get("dim", 0), int):
        return f"the dimension of {unbind.name} is computed"
    for user in unbind.users:
        if user.op != "call_function" or user.target is not operator.getitem or user.args[0] is not unbind:
            return f"{unbind.name} is used as a tuple by {user.name}"
        if not isinstance(user.args[1], int):
            return f"{user.name} picks {'a slice' if isinstance(user.args[1], slice) else 'a computed part'}"
    return f"no part of {unbind.name} is used" if not unbind.users else None


def _select_parts(gm: GraphModule, unbind: Node) -> int:
    call = bind(gm, unbind)
    assert call is not None
    source, dim = call.activations[0], call.arguments.get("dim", 0)
    assert isinstance(dim, int)
    info = source.meta.get("value")
    if dim < 0 and isinstance(info, TensorInfo):
        dim += len(info.shape)
    parts = list(unbind.users)
    for part in parts:
        with gm.graph.inserting_before(part):
            select = gm.graph.call_function(torch.select, (source, dim, part.args[1]))
        replace_node(part, inherit_meta(select, part))
    gm.graph.erase_node(unbind)
    return len(parts)
