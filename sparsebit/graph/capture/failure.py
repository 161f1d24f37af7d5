"""Add the place in the model to the error of a failing call of a captured graph."""

from __future__ import annotations

import linecache

from torch import Tensor, fx

from sparsebit.errors import SparsebitError
from sparsebit.graph.autocast import autocast_is_on


def explain_failure(gm: fx.GraphModule, error: Exception) -> None:
    """Add to an error the node that raised it, the shapes it was given, and the line of the model it was recorded from.

    The error keeps its type, so that code which handles running out of memory still works.
    """
    if isinstance(error, SparsebitError) or getattr(error, "__notes__", None):
        return
    trace, place = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<eval_with_key>"):
            place = trace
        trace = trace.tb_next
    if place is None:
        return
    line = linecache.getline(place.tb_frame.f_code.co_filename, place.tb_lineno)
    name = line.strip().partition(" = ")[0]
    node = next((node for node in gm.graph.nodes if node.name == name), None)
    if node is None:
        return
    values = place.tb_frame.f_locals
    shapes = [
        f"{source.name} {tuple(values[source.name].shape)}"
        for source in node.all_input_nodes
        if isinstance(values.get(source.name), Tensor)
    ]
    error.add_note(f"in node {node.name!r} of the captured graph, given {', '.join(shapes) or 'no tensors'}")
    if node.meta.get("source"):
        error.add_note(f"recorded from {node.meta['source']}")
    if autocast_is_on():
        error.add_note(
            "next: the model may read a dtype in its code, which autocast changes; capture or quantize it inside "
            "torch.autocast as well"
        )
        return
    error.add_note(
        "next: run the model itself on this input; if it takes it, capture again with this input as the example"
    )
