"""What reaches the weights and what comes out of them, summed over batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.run import Runner
from sparsebit.sparse.evidence.batch import LossBatch
from sparsebit.sparse.evidence.gradients import Totals, wide
from sparsebit.sparse.layers import WeightedLayer, activation_behind
from sparsebit.sparse.sparsers import Need
from sparsebit.sparse.sparsers.hrank import map_ranks


class Compact(Protocol):
    """A pruned model at its smaller size, as ``sparsebit.sparse.masking.compact`` makes it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the whole model would be called; gradients reach its parameters."""

    def snapshot(self) -> GraphModule:
        """A graph to look into, whose nodes have the names of the whole one's."""

    def spread(self, node: str, axis: int, numbers: Tensor) -> Tensor:
        """Numbers along an axis of a node's small result, in their places of the whole one."""


class Activations:
    """Sums over batches of what is derived from inputs and outputs of layers."""

    def __init__(
        self,
        gm: GraphModule,
        layers: Sequence[WeightedLayer],
        needs: frozenset[Need],
        compact: Compact | None = None,
    ) -> None:
        self.gm, self.needs, self.compact = gm, needs, compact
        self.runs = gm if compact is None or not needs else compact.snapshot()
        self.squares: dict[str, Tensor] = {}  # of inputs, by weight: [input channels]
        self.ranks: dict[str, Tensor] = {}  # by weight: [output channels]
        self.readers: dict[str, list[WeightedLayer]] = {}  # by node
        self.makers: dict[str, list[WeightedLayer]] = {}
        self.layers = {layer.tensor: layer for layer in layers}
        self.samples = 0
        for layer in layers:
            if "input_norm" in needs and layer.call.activations:
                self.readers.setdefault(layer.call.activations[0].name, []).append(layer)
            if "feature_rank" in needs:
                self.makers.setdefault(activation_behind(gm, layer.node).name, []).append(layer)

    def update(self, batch: LossBatch) -> None:
        """Run the graph on one batch and look."""

        def saw(node: Node, value: Any) -> None:
            if isinstance(value, Tensor) and value.is_floating_point():
                for layer in self.readers.get(node.name, ()):
                    self._add_squares(layer, node.name, value)
                for layer in self.makers.get(node.name, ()):
                    self._add_ranks(layer, node.name, value)

        with torch.no_grad():
            Runner(self.runs).run_call(batch.args, batch.kwargs, watch=saw)

    def _add_squares(self, layer: WeightedLayer, node: str, value: Tensor) -> None:
        axis = _channel_axis(layer)
        rows = value.movedim(axis, 0).reshape(value.shape[axis], -1)
        self._add(self.squares, layer, node, rows.to(wide(rows)).square().sum(1))

    def _add_ranks(self, layer: WeightedLayer, node: str, value: Tensor) -> None:
        ranks = map_ranks(value, _channel_axis(layer))
        if layer.call.spec.family == "rnn":  # a cell's rows are its units, once for every gate
            ranks = ranks.repeat(fetch_tensor(self.gm, layer.tensor).shape[0] // len(ranks))
        self._add(self.ranks, layer, node, ranks)

    def _add(self, sums: dict[str, Tensor], layer: WeightedLayer, node: str, numbers: Tensor) -> None:
        if self.compact is not None:
            numbers = self.compact.spread(node, _channel_axis(layer), numbers)
        sums[layer.tensor] = sums.get(layer.tensor, 0) + numbers

    def finish(self, count: int) -> Totals:
        """What was asked for, in the shape of each weight (norms) or by its outputs (ranks)."""
        found: Totals = {}
        if "input_norm" in self.needs:
            found["input_norm"] = {
                name: _over_weight(self.gm, layer, self.squares.get(name))
                for name, layer in self.layers.items()
            }
        if "feature_rank" in self.needs:
            found["feature_rank"] = {name: ranks / count for name, ranks in self.ranks.items()}
        return found


def _channel_axis(layer: WeightedLayer) -> int:
    return layer.call.spec.channel_axis if layer.call.spec.channel_axis is not None else -1


def _over_weight(gm: GraphModule, layer: WeightedLayer, squares: Tensor | None) -> Tensor:
    """The norm of the input that each element of the weight multiplies; ones where that is not known."""
    weight = fetch_tensor(gm, layer.tensor)
    outputs, inputs = layer.axes
    shape = [1] * weight.ndim
    if squares is not None and len(squares) == weight.shape[inputs]:
        shape[inputs] = -1
        return squares.sqrt().view(shape).expand(weight.shape)
    if squares is not None and outputs == 0 and len(squares) % weight.shape[inputs] == 0:
        groups = len(squares) // weight.shape[inputs]
        if (
            weight.shape[0] % groups == 0
        ):  # a grouped convolution: every group of outputs has inputs of its own
            shape[0], shape[inputs] = weight.shape[0], weight.shape[inputs]
            each = squares.sqrt().view(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
            return each.reshape(shape).expand(weight.shape)
    return torch.ones((), device=weight.device, dtype=wide(weight)).expand(weight.shape)
