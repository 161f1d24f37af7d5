"""Run a pruned graph at its full size, with removed channels excluded from every statistic.

Zeros are not always the same as absence: a layer norm over channels would count them, and a weight norm would divide by
the length of a zero row. Only those operators run on the remaining channels, and the other places of their results are
filled with zeros. Nothing here reads the plan that shrinks a model, so comparing a shrunk model with this one is an
independent test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from sparsebit.graph.effects import written_by
from sparsebit.graph.ops.spec import OpCall, fetch_tensor
from sparsebit.graph.run import Watch, run_graph
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.trace import Trace
from sparsebit.sparse.shrink.alive import Alive
from sparsebit.sparse.shrink.attributes import count_groups


class MaskedGraph:
    """A graph whose pruned weights are zero, and which computes as if the pruned channels were absent.

    Args:
        gm: the graph.
        groups: its channel groups; None if single weights are pruned, for which zeros are sufficient.
        kept: by the name of a group, bool [channels].
        zeros: whether removed channels are zero, rather than constants from their biases.
    """

    def __init__(
        self,
        gm: GraphModule,
        groups: ChannelGroups | None = None,
        kept: Mapping[str, Tensor] | None = None,
        *,
        zeros: bool = True,
    ) -> None:
        self.gm = gm
        self.replaced: dict[str, _OnSurvivors] = {}
        if groups is None or not kept:
            return
        trace, alive = groups.trace, Alive(groups, {name: flags.cpu() for name, flags in kept.items()})
        for name, call in trace.calls.items() if not alive.nothing_goes else ():
            nodes = [node for node in (call.node, *call.node.all_input_nodes) if _loses(trace, alive, node)]
            if nodes and (name in trace.statistics or (zeros and _is_undefined_at_zero(call, nodes))):
                self.replaced[name] = _OnSurvivors(gm, call, trace, alive)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call."""
        if not self.replaced:
            return self.gm(*args, **kwargs)
        return run_graph(self.gm, args, kwargs, replace=self.replaced)

    def watch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], watch: Watch) -> None:
        """The same call, node by node; ``watch`` sees the values."""
        run_graph(self.gm, args, kwargs, watch=watch, replace=self.replaced)


def _loses(trace: Trace, alive: Alive, node: Node) -> bool:
    labels = trace.values.get(node.name)
    return isinstance(labels, Labels) and alive.shape(labels) != labels.shape


def _is_undefined_at_zero(call: OpCall, zeros: Sequence[Node]) -> bool:
    """Whether an element-wise operator, or its derivative, is not finite if some operands are zero; by evaluation."""
    if not call.spec.elementwise or call.node.op != "call_function":
        return False
    tried: list[Tensor] = []

    def give(item: Any) -> Any:
        info = item.meta.get("value") if isinstance(item, Node) else item
        if isinstance(item, Node) and isinstance(info, TensorInfo):
            number = torch.zeros(()) if item in zeros else torch.ones(())
            if not info.dtype.is_floating_point:
                return number.to(info.dtype)
            tried.append(number.requires_grad_())
            return tried[-1].clone()  # the operator may write to it
        return info

    args, kwargs = map_aggregate((call.node.args, dict(call.node.kwargs)), give)
    try:
        with torch.enable_grad():
            result = call.node.target(*args, **kwargs)  # type: ignore[operator]
        slopes = torch.autograd.grad(result, tried, allow_unused=True) if result.requires_grad else ()
        return not all(bool(one.isfinite()) for one in (result, *slopes) if one is not None)
    except (RuntimeError, TypeError, ValueError):
        return False  # it does not take single numbers; none of those that divide or take roots does that


class _OnSurvivors:
    """One operator, run on the remaining parts of its operands; its result has zeros for removed channels."""

    def __init__(self, gm: GraphModule, call: OpCall, trace: Trace, alive: Alive) -> None:
        self.gm, self.call, self.trace, self.alive = gm, call, trace, alive

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        node, labels = self.call.node, self.trace.values
        given = _by_node((node.args, dict(node.kwargs)), (args, kwargs))
        cut = {source: self._cut(value, labels.get(source.name)) for source, value in given.items()}
        result = self._fill(self._run(node, cut), labels[node.name])
        for written in written_by(self.gm, node):
            given[written].copy_(result)  # its result is the tensor that it overwrites
            result = given[written]
        return result

    def _run(self, node: Node, cut: dict[Node, Any]) -> Any:
        spec, held = self.call.spec, self.call.arguments

        def fetch(argument: str) -> Any:
            value = held.get(argument)
            if isinstance(value, str):
                return self._cut(fetch_tensor(self.gm, value), self.trace.tensor(value))
            return cut[value] if isinstance(value, Node) else value

        x = fetch("input")
        if spec.channels == "norm_over_channels":
            shape = held["normalized_shape"]
            inner = x.shape[x.dim() - (len(shape) if isinstance(shape, tuple | list) else 1) :]
            if "bias" not in held:
                return F.rms_norm(x, inner, fetch("weight"), fetch("eps"))
            return F.layer_norm(x, inner, fetch("weight"), fetch("bias"), fetch("eps"))
        if spec.channels == "group_norm":
            groups = count_groups(self.call, self.trace, self.alive)
            return F.group_norm(x, groups, fetch("weight"), fetch("bias"), fetch("eps"))
        function: Any = self.gm.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        args, kwargs = map_aggregate(
            (node.args, dict(node.kwargs)), lambda value: cut[value] if isinstance(value, Node) else value
        )
        return function(*args, **kwargs)

    def _dims(self, labels: Labels) -> dict[int, Tensor]:
        """The remaining positions by dim, for dims that lose some."""
        found = {}
        for dim in {dim for family in labels.families for dim in family.dims}:
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
    """The value of every node among a node's arguments, from the passed arguments."""
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
