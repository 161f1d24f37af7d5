"""Replace sizes that cannot change by numbers, so that no runtime computes them from shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from sparsebit.export.translate.axes import resized
from sparsebit.export.translate.request import TranslationRequest
from sparsebit.graph.passes.edit import replace_value
from sparsebit.graph.run import run_graph


def fix_sizes(request: TranslationRequest) -> int:
    """Replace the sizes that are the same for inputs of another size along every dynamic axis; returns how many."""
    body = request.flat.body
    if not any(_reads_size(node) for node in body.graph.nodes):
        return 0
    runs: list[dict[str, int]] = []

    def note(node: fx.Node, value: Any) -> None:
        if _reads_size(node) and type(value) is int:
            runs[-1][node.name] = value

    for values in (request.inputs, resized(request.inputs, request.names, request.choices[0])):
        if values is None:
            continue
        runs.append({})
        try:
            with torch.no_grad(), request.state.undone():
                run_graph(body, [x.clone() for x in values], watch=note)
        except Exception:
            return 0  # the model accepts no other size, so nothing is known
    fixed = 0
    for node in [node for node in body.graph.nodes if node.name in runs[0]]:
        if all(run.get(node.name) == runs[0][node.name] for run in runs):
            replace_value(node, runs[0][node.name])
            fixed += 1
    body.recompile()
    return fixed


def _reads_size(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.Tensor.size and len(node.args) == 2
