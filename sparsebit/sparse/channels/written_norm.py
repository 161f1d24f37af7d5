"""Find norms that are written out in a model, by their behaviour: shifting or scaling the input changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from sparsebit.graph.ops import bind
from sparsebit.graph.ops.spec import OpCall, fetch_tensor
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.trace import Trace

_MOST_STEPS = 6  # casts, a difference and a square on the way from the input of a norm to its statistic
_STEPS = ("elementwise", "first_operand", "getitem")  # rules of operators that go element by element


def is_part_of_norm(trace: Trace, call: OpCall, dims: Sequence[int]) -> bool:
    """Whether this is a statistic of a norm: it is subtracted from its input, or its input is divided by it.

    Only such a statistic may be computed over the remaining channels, as in a norm of the smaller width; with any
    other, all channels are kept. ``dims`` are those that the statistic is over.
    """
    source = call.arguments["input"]
    if not isinstance(source, Node) or not call.arguments.get("keepdim"):
        return False
    # possible inputs of the norm: the input, or what it is computed from element-wise
    starts: list[Node] = [source]
    while len(starts) < _MOST_STEPS and _goes_on(trace, starts[-1]):
        starts += [one for one in starts[-1].all_input_nodes if _same(one, source)][:1] or [starts[-1]]
    shape = [size if dim in dims else 1 for dim, size in enumerate(source.meta["value"].shape)]
    row = torch.linspace(1, 2, math.prod(shape), dtype=torch.float64).reshape(shape)
    try:
        meetings = list(_meetings(trace, call.node, source))
        return any(
            _is_invariant(trace, row, start, end) for end in meetings for start in dict.fromkeys(starts)
        )
    except (RuntimeError, TypeError, ValueError):
        return False  # something that does not run on numbers alone


def _meetings(trace: Trace, statistic: Node, source: Node) -> Iterator[Node]:
    """Where the statistic, or a value computed from it, is combined with a tensor of its input's shape."""
    waiting, seen = [statistic], {statistic}
    while waiting:
        for user in waiting.pop().users:
            if user in seen or not _goes_on(trace, user):
                continue
            seen.add(user)
            if _same(user, source):
                yield user
            else:
                waiting.append(user)


def _is_invariant(trace: Trace, row: Tensor, start: Node, end: Node) -> bool:
    """Whether shifting or scaling ``start`` leaves ``end`` unchanged; tested on a row of numbers."""
    plain, *others = (_evaluate(trace, end, {start: one}) for one in (row, row + 3, 3 * row))
    moved = not torch.allclose(plain, plain.flatten()[0])
    return moved and any(torch.allclose(plain, other, rtol=1e-2, atol=1e-3) for other in others)


def _evaluate(trace: Trace, node: Node, known: dict[Node, Any]) -> Any:
    """The result of a node for the ``known`` values; parameters are unchanged, any other tensor is ones."""
    if node in known:
        return known[node]
    info, call = node.meta.get("value"), bind(trace.gm, node) if node.op.startswith("call_") else None
    value: Any = info
    if node.op == "get_attr":
        value = fetch_tensor(trace.gm, str(node.target)).detach().double()
    elif (
        call is not None
        and node.op == "call_function"
        and (_goes_on(trace, node) or call.spec.family == "reduce")
    ):
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda one: _evaluate(trace, one, known))
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        value = value.double() if isinstance(value, Tensor) else value
    elif isinstance(info, TensorInfo):
        value = torch.ones([1] * len(info.shape), dtype=torch.float64)
    known[node] = value
    return value


def _goes_on(trace: Trace, node: Node) -> bool:
    """Whether an operator works element by element, or selects one of several results."""
    call = bind(trace.gm, node) if node.op == "call_function" else None
    return call is not None and (call.spec.elementwise or call.spec.channels in _STEPS)


def _same(node: Node, source: Node) -> bool:
    """Whether two results have one shape."""
    info = node.meta.get("value")
    return isinstance(info, TensorInfo) and info.shape == source.meta["value"].shape
