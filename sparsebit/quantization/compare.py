"""The float model and the quantized one side by side, operator by operator, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from sparsebit.graph.ops import bind
from sparsebit.graph.run import SavedState, evaluating, flatten_call, last_uses
from sparsebit.quantization.modules.weights import quantizer_at
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import require_calibrated, switched

Checker = Callable[[Tensor, Tensor], Any]


def operator_errors(
    gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, checker: Checker, alone: bool
) -> dict[str, Any]:
    """The value of ``checker(float, quantized)`` for every operator that reads a quantized tensor or weight."""
    errors: dict[str, Any] = {}
    for node, exact, rounded in compare_operators(gm, args, kwargs, alone=alone):
        name = str(node.target) if node.op == "call_module" else node.name
        # A module that is called twice has two results; the second one goes by the name of its node.
        errors[node.name if name in errors else name] = checker(exact, rounded)
    return errors


def compare_operators(
    gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, alone: bool
) -> Iterator[tuple[Node, Tensor, Tensor]]:
    """Each quantized operator with its float and its quantized result, in the order of the graph.

    Two streams of values run through the graph together, and each value is freed after its last use. With ``alone``,
    the second stream is reset to the first after every operator, so that each is measured separately.
    """
    require_calibrated(m for m in gm.modules() if isinstance(m, Quantizer))
    last = last_uses(gm.graph)
    exact: dict[Node, Any] = {}
    rounded: dict[Node, Any] = {}
    touched: set[Node] = set()  # values that were rounded since the last operator
    inputs, run = iter(flatten_call(gm, args, dict(kwargs))), Interpreter(gm)
    with torch.no_grad(), evaluating(gm), SavedState(gm, parameters=False).undone():
        for node in gm.graph.nodes:
            if node.op == "output":
                return
            if node.op == "placeholder":
                exact[node] = rounded[node] = next(inputs)
            else:
                inside = _quantizers_in(gm, node)
                exact[node] = rounded[node] = _run(run, node, exact, inside, on=False)
                if inside or any(exact[source] is not rounded[source] for source in node.all_input_nodes):
                    rounded[node] = _run(run, node, rounded, inside, on=True)
                affected = not touched.isdisjoint(node.all_input_nodes)
                call = bind(gm, node)
                if quantizer_at(gm, node) is not None or (affected and call is not None and call.moves):
                    touched.add(node)
                else:
                    if (affected or inside) and isinstance(exact[node], Tensor):
                        yield node, exact[node], rounded[node]
                    if alone:
                        rounded[node] = exact[node]
            for dead in last.get(node, ()):
                exact.pop(dead, None)
                rounded.pop(dead, None)


def _quantizers_in(gm: GraphModule, node: Node) -> list[Quantizer]:
    """The quantizers that a node calls: itself, or those of its weights."""
    modules = gm.get_submodule(str(node.target)).modules() if node.op == "call_module" else ()
    return [module for module in modules if isinstance(module, Quantizer) and not module.fake_fused]


def _run(run: Interpreter, node: Node, values: dict[Node, Any], inside: list[Quantizer], *, on: bool) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    with switched(inside, on):
        return getattr(run, node.op)(node.target, args, kwargs)
