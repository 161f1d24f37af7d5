"""Multiply-accumulates of an operator without a formula: run it on the meta device, or estimate from its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import FlopCounterMode

from sparsebit.graph.exclusive import without_warnings
from sparsebit.graph.ops.spec import OpCall, fetch_tensor, shape_of
from sparsebit.graph.value import TensorInfo, map_tensors


def estimate_macs(gm: GraphModule, node: Node) -> int:
    """The contractions that ``FlopCounterMode`` sees when the node runs on the meta device.

    Code that needs real numbers cannot run there; then every weight matrix is assumed to be used once per position of
    the result. Needs the recorded shapes.
    """
    try:
        return _count_on_meta(gm, node)
    except Exception:  # the node runs the user's code; if it raises an error, only the estimate is lost
        return _guess_from_weights(gm, node)


def count_by_running(call: OpCall) -> int:
    """``macs`` of operators that torch counts itself: an einsum, for example, is counted as its products."""
    shape_of(call.owner, call.node)  # raises where no shapes were recorded
    return estimate_macs(call.owner, call.node)


def weights_of(gm: GraphModule, node: Node) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters a node reads directly: those of its module, or those passed to it."""
    if node.op == "call_module":
        target = str(node.target)
        named = gm.get_submodule(target).named_parameters()
        yield from ((f"{target}.{name}", parameter) for name, parameter in named)
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            tensor = fetch_tensor(gm, str(argument.target))
            if isinstance(tensor, nn.Parameter):
                yield str(argument.target), tensor


def _count_on_meta(gm: GraphModule, node: Node) -> int:
    args, kwargs = map_arg((node.args, node.kwargs), lambda argument: _empty_like(gm, argument))
    with without_warnings(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        if node.op == "call_module":
            module = gm.get_submodule(str(node.target))
            state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            meta = {name: tensor.to("meta") for name, tensor in state.items()}
            torch.func.functional_call(module, meta, args, kwargs)
        elif node.op == "call_method":
            getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            assert callable(node.target)
            node.target(*args, **kwargs)
    return int(counter.get_total_flops()) // 2


def _empty_like(gm: GraphModule, node: Node) -> Any:
    if node.op == "get_attr" and not isinstance(node.meta.get("value"), TensorInfo):
        return fetch_tensor(gm, str(node.target)).to("meta")
    return map_tensors(
        node.meta["value"], lambda info: torch.empty(info.shape, dtype=info.dtype, device="meta")
    )


def _guess_from_weights(gm: GraphModule, node: Node) -> int:
    weights = [weight for _, weight in weights_of(gm, node) if weight.ndim > 1]
    return sum(weight.numel() * _positions(weight, shape_of(gm, node)) for weight in weights)


def _positions(weight: Tensor, shape: tuple[int, ...]) -> int:
    """The positions a weight is applied to: a matrix acts on the last axis, a kernel on channels on axis 1."""
    return math.prod(shape[:-1] if weight.ndim == 2 else (*shape[:1], *shape[2:]))
