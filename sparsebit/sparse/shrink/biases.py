"""Biases that stay when their channels are removed, moved into the biases of the layers that read the channels.

Such a channel is not zero but constant: its bias, transformed by element-wise operators, moves, pooling and means.
These operators are run on the constants only. A layer that reads them adds the same value to every position, so its own
bias can do that instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_aggregate

from sparsebit.batches import device_of
from sparsebit.errors import GraphError
from sparsebit.graph.ops.spec import OpCall, fetch_tensor
from sparsebit.sparse.channels.group import ChannelGroups, has_own_bias
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.rules.base import why
from sparsebit.sparse.shrink.alive import Alive


def carry_biases(groups: ChannelGroups, alive: Alive) -> dict[str, Tensor]:
    """What to add to each bias, by name, so that the biases of removed channels are not needed.

    Raises:
        GraphError: if their effect is not constant, or if no bias can absorb it.
    """
    if alive.nothing_goes:
        return {}
    carrier = _Carrier(groups, alive)
    for call in groups.trace.calls.values():
        carrier.visit(call)
    return carrier.added


class _Carrier:
    """Follows constants through the graph, node by node.

    Every constant has memory of its own, as the model's values have, because operators may write to it.
    """

    def __init__(self, groups: ChannelGroups, alive: Alive) -> None:
        self.trace, self.alive, self.device = groups.trace, alive, device_of(groups.trace.gm)
        self.known: dict[Node, Tensor] = {}  # correct at the places of removed channels
        self.added: dict[str, Tensor] = {}

    def visit(self, call: OpCall) -> None:
        """Find the constants in a node's result, or move those it reads into its bias."""
        inputs = [node for node in call.node.all_input_nodes if self._is_constant(node)]
        labels = self.trace.values.get(call.node.name)
        removed = self._removed(call.node) is not None
        own = isinstance(labels, Labels) and all(
            family.dims == (_axis(call, labels),)
            for family in labels.families
            if self.alive.of(family.labels) is not None
        )
        if has_own_bias(call) and own:
            for node in inputs:
                self._move_into_bias(call, node)
            if removed:
                self.known[call.node] = self._bias(call)
        elif not inputs and not removed:
            return
        elif removed and self._follows_constants(call):
            # Also if it is zero: it may be a view that is written to later.
            self.known[call.node] = self._run(call, {})
        elif (
            isinstance(labels, Labels)
            and labels.zero
            and (not inputs or (call.spec.family == "norm" and own))  # a norm's factors are removed as well
        ):
            dtype = call.node.meta["value"].dtype
            self.known[call.node] = torch.zeros(labels.shape, dtype=dtype, device=self.device)
        elif call.spec.weight_axes is not None and call.bias_name is None:
            raise _refuse(f"{why(call)} has no bias that could add it")
        else:
            raise _refuse(f"their effect cannot be followed through {why(call)}")

    def _removed(self, node: Node) -> Tensor | None:
        """Bool in the shape of a result: the elements of removed channels; None if there are none."""
        labels = self.trace.values.get(node.name)
        if not isinstance(labels, Labels) or self.alive.shape(labels) == labels.shape:
            return None
        gone = torch.zeros(labels.shape, dtype=torch.bool)
        for family in labels.families:
            if (flags := self.alive.of(family.labels)) is not None:
                gone |= ~Family(family.dims, flags).full(labels.shape)
        return gone

    def _is_constant(self, node: Node) -> bool:
        """Whether removed channels of a result are not zero."""
        removed = self._removed(node) if node in self.known else None
        return removed is not None and bool(self.known[node].cpu()[removed].ne(0).any())

    def _follows_constants(self, call: OpCall) -> bool:
        """Whether a channel of the result depends on the same channel of known inputs, and on nothing else."""
        spec, values = call.spec, self.trace.values
        tensors = [node for node in call.node.all_input_nodes if isinstance(values.get(node.name), Labels)]
        known = all(node in self.known or node.op == "get_attr" for node in tensors)
        return known and (spec.elementwise or call.moves or spec.channels in ("per_channel", "mean", "sum"))

    def _run(self, call: OpCall, instead: Mapping[Node, Tensor]) -> Any:
        def give(item: Any) -> Any:
            if not isinstance(item, Node):
                return item
            if item in instead or item in self.known:
                return instead[item] if item in instead else self.known[item]
            return (
                fetch_tensor(self.trace.gm, str(item.target)) if item.op == "get_attr" else item.meta["value"]
            )

        args, kwargs = map_aggregate((call.node.args, dict(call.node.kwargs)), give)
        function: Any = call.module if call.module is not None else call.node.target
        with torch.no_grad():
            return function(*args, **kwargs)

    def _bias(self, call: OpCall) -> Tensor:
        """The result of a layer if its weights were zero."""
        bias, shape = fetch_tensor(self.trace.gm, call.bias_name or ""), self.trace.labels_of(call.node).shape
        axis = _axis(call, self.trace.labels_of(call.node))
        alone = bias.detach().reshape([-1 if dim == axis else 1 for dim in range(len(shape))]).expand(shape)
        return alone.clone(memory_format=torch.contiguous_format)

    def _move_into_bias(self, call: OpCall, node: Node) -> None:
        removed = self._removed(node)
        assert removed is not None
        alone = self.known[node] * removed.to(self.known[node].device)
        change = self._run(call, {node: alone}) - self._run(call, {node: torch.zeros_like(alone)})
        axis = _axis(call, self.trace.labels_of(call.node))
        rows = change.movedim(axis, 0).reshape(change.shape[axis], -1)
        if not bool(rows.isfinite().all()):
            raise _refuse(f"{why(call)} reads numbers that are not finite")
        if not torch.allclose(
            rows, rows[:, :1].expand_as(rows), rtol=1e-4, atol=1e-6 * float(rows.abs().max())
        ):
            raise _refuse(f"{why(call)} does not add the same everywhere: it pads its input")
        name = self.trace.canonical(call.bias_name or "")
        if name in self.added:
            raise _refuse(f"{why(call)} is called several times with one bias")
        self.added[name] = rows[:, 0].clone()


def _axis(call: OpCall, result: Labels) -> int:
    return (call.spec.channel_axis or -1) % max(len(result.shape), 1)


def _refuse(reason: str) -> GraphError:
    return GraphError(
        "the biases of removed channels cannot be kept",
        where="SPARSER.PRUNE_BIAS",
        got=reason,
        hint="set PRUNE_BIAS: true, or IGNORE the layer that computes these channels",
    )
