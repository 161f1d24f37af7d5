"""A graph that writes to its inputs works on copies of them."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from sparsebit.graph.effects import overwritten


def copy_written_inputs(gm: GraphModule) -> int:
    """Copy every input that the graph overwrites, for work that runs a batch several times; returns how many."""
    written = overwritten(gm)
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    changing = [node for node in inputs if node in written]
    for node in changing:
        with gm.graph.inserting_after(inputs[-1]):
            copied = gm.graph.call_function(torch.clone, (node,))
        copied.meta = dict(node.meta)
        node.replace_all_uses_with(copied, delete_user_cb=lambda user, copied=copied: user is not copied)
    if changing:
        gm.recompile()
    return len(changing)
