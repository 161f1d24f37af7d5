"""The parameter of a weight that the graph transposes: ``x @ weight.T``, stacked experts ``[E, out, in]``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.fx import GraphModule, Node

from sparsebit.graph.ops import bind
from sparsebit.graph.ops.spec import fetch_tensor

_TRANSPOSES = frozenset({"transpose", "t", "permute", "adjoint", "movedim"})


class StoredWeight(NamedTuple):
    """A parameter, and for every dim of the transposed tensor the axis of the parameter."""

    name: str
    axes: tuple[int, ...]


def stored_weight(gm: GraphModule, value: object) -> StoredWeight | None:
    """The parameter that an argument is, possibly transposed; None for anything else."""
    steps: list[Node] = []
    while isinstance(value, Node) and value.op == "call_function":
        call = bind(gm, value)
        if call is None or call.spec.name not in _TRANSPOSES:
            return None
        steps.append(value)
        value = call.arguments["input"]
    if isinstance(value, Node) and value.op == "get_attr":
        value = str(value.target)
    if not isinstance(value, str):
        return None
    parameter = fetch_tensor(gm, value)
    if not isinstance(parameter, nn.Parameter):
        return None
    # a different size for every axis, so that the result shows where each went
    axes = torch.empty(tuple(range(2, 2 + parameter.dim())), device="meta")
    for step in reversed(steps):
        axes = step.target(axes, *step.args[1:], **step.kwargs)  # type: ignore[operator]
    return StoredWeight(value, tuple(size - 2 for size in axes.shape))
