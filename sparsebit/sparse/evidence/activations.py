"""Statistics of the inputs and outputs of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.batches import Batch, DataError
from sparsebit.graph.ops import OpCall
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.run import last_uses
from sparsebit.numerics.finite import is_finite
from sparsebit.sparse.evidence.statistic import States, Statistic, register_statistic, wide
from sparsebit.sparse.layers import WeightedLayer, activation_behind
from sparsebit.sparse.masking.masked_graph import MaskedGraph


@register_statistic("input_norm")
@dataclass(frozen=True)
class InputNorm(Statistic):
    """L2 norm of every input channel, over all the data."""

    source, per = "input", "input"

    def measure(self, seen: Tensor) -> Tensor:
        """Squares, summed."""
        return seen.flatten(1).square().sum(1)

    def finish(self, state: Tensor, batches: int) -> Tensor:
        """The root of the sum."""
        return state.sqrt()


@register_statistic("input_mean")
@dataclass(frozen=True)
class InputMean(Statistic):
    """Mean magnitude of every input channel."""

    source, per = "input", "input"

    def measure(self, seen: Tensor) -> Tensor:
        """The mean magnitude in a batch."""
        return seen.flatten(1).abs().mean(1)


@register_statistic("input_products")
@dataclass(frozen=True)
class InputProducts(Statistic):
    """XᵀX of a layer's inputs, [channels, channels], summed over the data, for second-order methods."""

    source, per = "input", "layer"

    def measure(self, seen: Tensor) -> Tensor:
        """The products of all pairs of channels."""
        rows = seen.flatten(1)
        return rows @ rows.T

    def finish(self, state: Tensor, batches: int) -> Tensor:
        """The sum itself."""
        return state


@register_statistic("feature_rank")
@dataclass(frozen=True)
class FeatureRank(Statistic):
    """Average rank of the feature map of every output channel."""

    source, per = "output", "output"

    def measure(self, seen: Tensor) -> Tensor:
        """Ranks, summed over the batch."""
        return map_ranks(seen)


def map_ranks(maps: Tensor) -> Tensor:
    """Rank of every channel's map, summed over the batch: [C, batch, ...] to [C].

    A map is the last two axes of what remains besides channel and batch. If a channel has one such axis or none, its
    map is a vector or a number, whose rank is 0 only if it is zero.
    """
    if maps.ndim < 4:
        rows = maps.reshape(len(maps), maps.shape[1] if maps.ndim > 1 else 1, -1)
        return (rows != 0).any(-1).sum(1).float()
    ranks: Tensor = torch.linalg.matrix_rank(maps.reshape(-1, *maps.shape[-2:]).float())
    return ranks.reshape(len(maps), -1).sum(1).float()


Observed = tuple[
    str, WeightedLayer, Node
]  # a statistic, the layer it belongs to, and the node with the numbers


class Activations:
    """Observes the layers of a graph, and keeps the states of statistics of their inputs and outputs."""

    def __init__(
        self, graph: MaskedGraph, layers: Sequence[WeightedLayer], statistics: Mapping[str, Statistic]
    ) -> None:
        self.graph, self.layers, self.states = graph, layers, States(statistics)
        self.inputs: dict[Node, list[Observed]] = {}  # by the node that reads them
        self.outputs: dict[Node, list[Observed]] = {}  # by the node that computes them
        for name, statistic in statistics.items():
            for layer in layers:
                for call in layer.calls:
                    if statistic.source == "output":
                        behind = activation_behind(graph.gm, call.node)
                        self.outputs.setdefault(behind, []).append((name, layer, behind))
                    elif call.activations and _reads_the_input(call, layer):
                        seen = (name, layer, call.activations[0])
                        self.inputs.setdefault(call.node, []).append(seen)
        self.sources = {source for observed in self.inputs.values() for *_, source in observed}
        self.dead_after = last_uses(graph.gm.graph)

    def update(self, batch: Batch) -> None:
        """Run the graph on one batch and update the statistics."""
        values: dict[Node, Any] = {}

        def saw(node: Node, value: Any) -> None:
            # Inputs of this call now, as they may have been overwritten before it.
            for name, layer, source in self.inputs.get(node, ()):
                self._add(name, layer, values[source])
            for name, layer, _ in self.outputs.get(node, ()):
                self._add(name, layer, value)
            if node in self.sources:
                values[node] = value
            for dead in self.dead_after.get(node, ()):
                values.pop(dead, None)

        with torch.no_grad():
            self.graph.watch(batch.args, batch.kwargs, saw)

    def _add(self, name: str, layer: WeightedLayer, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            axis = layer.call.spec.channel_axis
            channels = value.movedim(-1 if axis is None else axis, 0)
            self.states.add(name, layer.tensor, channels if value.dim() > 1 else channels[:, None])

    def finish(self, batches: int) -> dict[str, dict[str, Tensor]]:
        """Results by statistic and weight; expanded to the weight's shape if there is one number per input channel."""
        uses = {layer.tensor: len(layer.calls) for layer in self.layers}
        found = self.states.finish(batches, uses)
        for name, statistic in self.states.statistics.items():
            results = found[name]
            for tensor, result in results.items():
                if not is_finite(result):
                    raise DataError(
                        f"the statistic {name!r} is infinite or NaN, so any choice would be arbitrary",
                        where=tensor,
                        hint=f"look at the numbers that reach this layer: its {statistic.source} is not finite",
                    )
            for layer in self.layers:
                if statistic.per == "input":
                    results[layer.tensor] = _over_weight(self.graph.gm, layer, results.get(layer.tensor))
                elif statistic.per == "output" and layer.tensor in results:
                    results[layer.tensor] = _over_outputs(self.graph.gm, layer, results[layer.tensor])
        return found


def _reads_the_input(call: OpCall, layer: WeightedLayer) -> bool:
    """Whether a weight is multiplied by the input of its layer: in a recurrent layer, only those of the first."""
    own = layer.tensor.rpartition(".")[2]
    return call.spec.family != "rnn" or own in ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")


def _over_outputs(gm: GraphModule, layer: WeightedLayer, numbers: Tensor) -> Tensor:
    """One number for each position of the weight's axis of outputs."""
    width = fetch_tensor(gm, layer.tensor).shape[layer.axes[0]]
    if layer.call.spec.family == "rnn":
        return numbers.repeat(width // len(numbers))  # a row for every gate of a hidden unit
    if len(numbers) > width and len(numbers) % width == 0:  # grouped transposed: a position is in every group
        return numbers.view(-1, width, *numbers.shape[1:]).mean(0)
    return numbers


def _over_weight(gm: GraphModule, layer: WeightedLayer, numbers: Tensor | None) -> Tensor:
    """The value for the input channel that each element of the weight multiplies; ones if unknown."""
    weight = fetch_tensor(gm, layer.tensor)
    outputs, inputs = layer.axes
    shape, width = [1] * weight.ndim, weight.shape[inputs]
    groups = 0 if numbers is None or len(numbers) % width else len(numbers) // width
    if numbers is not None and groups == 1:
        shape[inputs] = -1
        return numbers.view(shape).expand(weight.shape)
    if numbers is not None and groups and outputs == 0 and weight.shape[0] % groups == 0:
        shape[0], shape[inputs] = weight.shape[0], width  # every group of outputs has inputs of its own
        each = numbers.view(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
        return each.reshape(shape).expand(weight.shape)
    return torch.ones((), device=weight.device, dtype=wide(weight)).expand(weight.shape)
