"""Run a pruned graph at its full size, with removed channels left out of every statistic.

Zeros are not always the same as absence: a layer norm over channels would count them, and a weight norm would divide by
the length of a zero row. Those operators, and only those, run on the remaining channels, and zeros fill the other
places of their results. Nothing here reads the plan that shrinks a model, so comparing a shrunk model with this one is
a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from sparsebit.graph.ops.spec import OpCall, fetch_tensor
from sparsebit.graph.run import Runner, Watch
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.trace import Trace
from sparsebit.sparse.shrink.alive import Alive
from sparsebit.sparse.shrink.constants import count_groups

_UNDEFINED_AT_ZERO = frozenset({"div", "rsqrt", "reciprocal", "log", "log2", "log10", "pow"})


class MaskedGraph:
    """A graph whose pruned weights are zero, called as if the pruned channels were absent.

    Args:
        gm: the graph.
        groups: its channel groups; None where single weights are pruned, for which zeros are enough.
        kept: by the name of a group, bool [channels].
    """

    def __init__(
        self, gm: GraphModule, groups: ChannelGroups | None = None, kept: Mapping[str, Tensor] | None = None
    ) -> None:
        self.gm = gm
        self.replaced = _replacements(gm, groups, kept) if groups is not None and kept else {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call."""
        if not self.replaced:
            return self.gm(*args, **kwargs)
        return Runner(self.gm).run_call(args, kwargs, replace=self.replaced).output

    def watch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], watch: Watch) -> None:
        """The same call, node by node; ``watch`` sees the values."""
        Runner(self.gm).run_call(args, kwargs, watch=watch, replace=self.replaced)


def _replacements(
    gm: GraphModule, groups: ChannelGroups, kept: Mapping[str, Tensor]
) -> dict[str, Callable[..., Any]]:
    trace, alive = groups.trace, Alive(groups, {name: flags.cpu() for name, flags in kept.items()})
    if alive.nothing_goes:
        return {}
    found: dict[str, Callable[..., Any]] = {}
    for name, call in trace.calls.items():
        if name in trace.statistics or _may_divide_by_zero(trace, call):
            labels = [trace.values.get(node.name) for node in (call.node, *call.node.all_input_nodes)]
            if any(isinstance(one, Labels) and alive.shape(one) != one.shape for one in labels):
                found[name] = _OnSurvivors(gm, call, trace, alive)
    return found


def _may_divide_by_zero(trace: Trace, call: OpCall) -> bool:
    if call.spec.name not in _UNDEFINED_AT_ZERO or call.node.op != "call_function":
        return False
    exponent = call.arguments.get("exponent")
    if call.spec.name == "pow" and isinstance(exponent, int | float) and exponent >= 0:
        return False
    below = call.node.args[1] if call.spec.name == "div" and len(call.node.args) > 1 else call.node.args[0]
    labels = trace.values.get(below.name) if isinstance(below, Node) else None
    return isinstance(labels, Labels) and bool(labels.layers)


class _OnSurvivors:
    """One operator, run on what is left of its operands; its result has zeros in the places of what is gone."""

    def __init__(self, gm: GraphModule, call: OpCall, trace: Trace, alive: Alive) -> None:
        self.gm, self.call, self.trace, self.alive = gm, call, trace, alive

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        node, given = (
            self.call.node,
            _by_node((self.call.node.args, dict(self.call.node.kwargs)), (args, kwargs)),
        )
        cut = {
            source: self._cut(value, self.trace.values.get(source.name)) for source, value in given.items()
        }
        return self._fill(self._run(node, cut), self.trace.values[node.name])

    def _run(self, node: Node, cut: dict[Node, Any]) -> Any:
        name, held = self.call.spec.name, self.call.arguments

        def fetch(argument: str) -> Any:
            value = held.get(argument)
            if isinstance(value, str):
                return self._cut(fetch_tensor(self.gm, value), self.trace.tensor(value))
            return cut[value] if isinstance(value, Node) else value

        x = fetch("input")
        if self.call.spec.channels == "norm_over_channels":
            shape = held["normalized_shape"]
            inner = x.shape[x.dim() - (len(shape) if isinstance(shape, tuple | list) else 1) :]
            if name == "rms_norm":
                return F.rms_norm(x, inner, fetch("weight"), fetch("eps"))
            return F.layer_norm(x, inner, fetch("weight"), fetch("bias"), fetch("eps"))
        if name == "group_norm":
            groups = count_groups(self.call, self.trace, self.alive)
            return F.group_norm(x, groups, fetch("weight"), fetch("bias"), fetch("eps"))
        function: Any = self.gm.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        args, kwargs = map_aggregate(
            (node.args, dict(node.kwargs)), lambda value: cut[value] if isinstance(value, Node) else value
        )
        return function(*args, **kwargs)

    def _dims(self, labels: Labels) -> dict[int, Tensor]:
        """By dim, the positions that stay, for the dims that lose some."""
        found = {}
        for dim in {dim for layer in labels.layers for dim in layer.dims}:
            # the running statistics of a batch norm module keep every channel
            flags = None if self._keeps_channels and dim == 1 else self.alive.along(labels, dim)
            if flags is not None:
                found[dim] = flags.nonzero().reshape(-1)
        return found

    @property
    def _keeps_channels(self) -> bool:
        return self.call.node.op == "call_module" and self.call.spec.channels == "norm_per_channel"

    def _cut(self, value: Any, labels: object) -> Any:
        if isinstance(value, Tensor) and isinstance(labels, Labels):
            for dim, index in self._dims(labels).items():
                value = value.index_select(dim, index.to(value.device))
        return value

    def _fill(self, value: Any, labels: object) -> Any:
        if isinstance(value, tuple | list) and isinstance(labels, tuple | list):
            return tuple(self._fill(one, other) for one, other in zip(value, labels, strict=True))
        if isinstance(value, Tensor) and isinstance(labels, Labels):
            for dim, index in self._dims(labels).items():
                shape = list(value.shape)
                shape[dim] = labels.shape[dim]
                value = value.new_zeros(shape).index_copy(dim, index.to(value.device), value)
        return value


def _by_node(places: Any, values: Any) -> dict[Node, Any]:
    """The value of every node among a node's arguments, from the arguments as they come."""
    if isinstance(places, Node):
        return {places: values}
    if isinstance(places, tuple | list):
        pairs = zip(places, values, strict=True)
        return {node: value for one, other in pairs for node, value in _by_node(one, other).items()}
    if isinstance(places, dict):
        return {
            node: value for key, one in places.items() for node, value in _by_node(one, values[key]).items()
        }
    return {}
