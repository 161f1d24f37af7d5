"""The float model and the quantized one side by side, operator by operator, in one pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from sparsebit.graph.ops import bind
from sparsebit.graph.run import flatten_call, last_uses
from sparsebit.quantization.modules.leaves import evaluating
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import require_calibrated, switched

Checker = Callable[[Tensor, Tensor], Any]


def operator_errors(
    gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, checker: Checker, alone: bool
) -> dict[str, Any]:
    """``checker(float, quantized)`` for the result of every operator that reads a quantized tensor or weight."""
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

    Two streams of values run through the graph together and are freed as soon as nobody needs them. With ``alone`` the
    second one falls back to the first behind every operator, so that each is measured by itself.
    """
    require_calibrated(m for m in gm.modules() if isinstance(m, Quantizer))
    last = last_uses(gm.graph)
    exact: dict[Node, Any] = {}
    rounded: dict[Node, Any] = {}
    touched: set[Node] = set()  # values that were rounded since the last operator
    inputs = iter(flatten_call(gm, args, dict(kwargs)))
    with torch.no_grad(), evaluating(gm), _kept_buffers(gm):
        for node in gm.graph.nodes:
            if node.op == "output":
                return
            if node.op == "placeholder":
                exact[node] = rounded[node] = next(inputs)
            else:
                exact[node], rounded[node] = _both(gm, node, exact, rounded)
                affected = not touched.isdisjoint(node.all_input_nodes)
                if _is_quantizer(gm, node) or (affected and _hands_on(gm, node)):
                    touched.add(node)
                elif affected or _weight_quantizers(gm, node):
                    if isinstance(exact[node], Tensor):
                        yield node, exact[node], rounded[node]
                    if alone:
                        rounded[node] = exact[node]
                elif alone:
                    rounded[node] = exact[node]
            for dead in last.get(node, ()):
                exact.pop(dead, None)
                rounded.pop(dead, None)


def _both(gm: GraphModule, node: Node, exact: dict[Node, Any], rounded: dict[Node, Any]) -> tuple[Any, Any]:
    weights = _weight_quantizers(gm, node)
    own = _quantizers_of(gm, node)
    with switched((*weights, *own), False):
        first = _run(gm, node, exact)
    same = all(exact[source] is rounded[source] for source in node.all_input_nodes)
    if same and not weights and not own:
        return first, first
    with switched((*weights, *own), True):
        return first, _run(gm, node, rounded)


def _run(gm: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
    args = map_arg(node.args, values.__getitem__)
    kwargs = map_arg(node.kwargs, values.__getitem__)
    target: Any = node.target
    if node.op == "call_module":
        return gm.get_submodule(target)(*args, **kwargs)
    if node.op == "get_attr":
        owner, _, name = target.rpartition(".")
        return getattr(gm.get_submodule(owner), name)
    return target(*args, **kwargs)


def _is_quantizer(gm: GraphModule, node: Node) -> bool:
    return node.op == "call_module" and isinstance(gm.get_submodule(str(node.target)), Quantizer)


def _weight_quantizers(gm: GraphModule, node: Node) -> tuple[Quantizer, ...]:
    if node.op != "call_module":
        return ()
    module = gm.get_submodule(str(node.target))
    if isinstance(module, Quantizer):
        return ()
    return tuple(m for m in module.modules() if isinstance(m, Quantizer) and not m.fake_fused)


def _quantizers_of(gm: GraphModule, node: Node) -> tuple[Quantizer, ...]:
    if node.op != "call_module":
        return ()
    module = gm.get_submodule(str(node.target))
    return (module,) if isinstance(module, Quantizer) and not module.fake_fused else ()


def _hands_on(gm: GraphModule, node: Node) -> bool:
    call = bind(gm, node)
    return call is not None and call.moves


@contextlib.contextmanager
def _kept_buffers(gm: GraphModule) -> Iterator[None]:
    """Put back what the model counts or averages as it runs."""
    before = [(buffer, buffer.clone()) for buffer in gm.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)
