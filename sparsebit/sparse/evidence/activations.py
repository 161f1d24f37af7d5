"""Statistics of the inputs and outputs of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.batches import Batch
from sparsebit.graph.ops.spec import fetch_tensor
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


class Activations:
    """Observes the layers of a graph, and keeps the states of statistics of their inputs and outputs."""

    def __init__(
        self, graph: MaskedGraph, layers: Sequence[WeightedLayer], statistics: Mapping[str, Statistic]
    ) -> None:
        self.graph, self.layers, self.states = graph, layers, States(statistics)
        self.watched: dict[str, list[tuple[str, WeightedLayer]]] = {}  # by node
        for name, statistic in statistics.items():
            for layer in layers:
                behind = activation_behind(graph.gm, layer.node) if statistic.source == "output" else None
                for node in [behind] if behind is not None else layer.call.activations[:1]:
                    self.watched.setdefault(node.name, []).append((name, layer))

    def update(self, batch: Batch) -> None:
        """Run the graph on one batch and update the statistics."""

        def saw(node: Node, value: Any) -> None:
            if isinstance(value, Tensor) and value.is_floating_point():
                for name, layer in self.watched.get(node.name, ()):
                    axis = layer.call.spec.channel_axis
                    self.states.add(name, layer.tensor, value.movedim(-1 if axis is None else axis, 0))

        with torch.no_grad():
            self.graph.watch(batch.args, batch.kwargs, saw)

    def finish(self, batches: int) -> dict[str, dict[str, Tensor]]:
        """Results by statistic and weight; expanded to the weight's shape if there is one number per input channel."""
        found = self.states.finish(batches)
        for name, statistic in self.states.statistics.items():
            results = found[name]
            for layer in self.layers:
                if statistic.per == "input":
                    results[layer.tensor] = _over_weight(self.graph.gm, layer, results.get(layer.tensor))
                elif statistic.per == "output" and layer.tensor in results:
                    # a recurrent cell has a row for every gate of a hidden unit
                    rows, units = (
                        fetch_tensor(self.graph.gm, layer.tensor).shape[0],
                        len(results[layer.tensor]),
                    )
                    gates = rows // units if layer.call.spec.family == "rnn" else 1
                    results[layer.tensor] = results[layer.tensor].repeat(gates)
        return found


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
