"""Parts of a graph that can be reconstructed one after the other: blocks between bottlenecks, or single layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import fx
from torch.fx import GraphModule, Node

from sparsebit.graph.codegen import fail_silently, make_safe
from sparsebit.graph.effects import overwritten
from sparsebit.graph.ops import find_op
from sparsebit.quantization.algorithms.layers import QuantizedLayer, find_quantized_layers, sole_reader
from sparsebit.quantization.modules.weights import quantizer_at, weights_read

Granularity = Literal["block", "layer"]


@dataclass(frozen=True)
class Block:
    """Consecutive nodes, the earlier values that they read, and their values that later nodes read."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    weights: tuple[str, ...]  # names of the quantized weights that first occur here; there may be none

    @property
    def name(self) -> str:
        """Its first and last weight."""
        first, last = (self.weights[0], self.weights[-1]) if self.weights else ("", "")
        return first if first == last else f"{first} .. {last}"


def find_blocks(gm: GraphModule, granularity: Granularity = "block", largest: int = 12) -> list[Block]:
    """Cut a graph with quantizers into blocks, in order.

    A cut is made where a single tensor carries everything that the layers before it have computed: between residual
    blocks, between transformer layers, after every layer of a plain chain. Values that no layer computes (masks,
    positions) may cross a cut, except the input of the first layer, which parallel layers may also read. An activation
    stays with the layer before it; the quantizer of a tensor goes with the layers that read it. A depthwise convolution
    belongs to the pointwise one after it, and to the one before it that widened the tensor: an inverted bottleneck is
    one block, whether or not a residual goes around it. If there is no such place within ``largest`` layers, the cut is
    at the narrowest place. For ``layer`` every layer is a block.
    """
    return _Cutter(gm).cut(granularity, largest)


class _Cutter:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.nodes: list[Node] = [
            node for node in gm.graph.nodes if node.op.startswith("call_") and not _holds_weight(gm, node)
        ]
        self.weights = {node: self._weights_of(node) for node in self.nodes}
        self.computed: set[Node] = set()  # by some layer, directly or not
        for node in self.nodes:
            if self.weights[node] or not self.computed.isdisjoint(node.all_input_nodes):
                self.computed.add(node)
        self.order = {node: index for index, node in enumerate(self.nodes)}
        self.order[next(iter(reversed(gm.graph.nodes)))] = len(self.nodes)  # the output
        self.last_use = {node: self._last_use(node) for node in self.nodes}
        self.writes = [
            range(self.order[node], max(self.order[writer] for writer in writers))
            for node, writers in overwritten(gm).items()
            if node in self.order
        ]
        self.beside: list[int] = []  # last uses of what the first layer reads
        known = {layer.node: layer for layer in find_quantized_layers(gm)}
        self.layers = [(self.order[node], known.get(node)) for node in self.nodes if self.weights[node]]

    def _last_use(self, node: Node) -> int:
        return max((self.order[user] for user in node.users if user in self.order), default=-1)

    def _read_by_the_first_layer(self, largest: int) -> list[int]:
        """The last uses of the values in the first layer's input, if they are not more than a block away."""
        first = next((node for node in self.nodes if self.weights[node]), None)
        above, todo = dict[Node, None](), list(first.all_input_nodes if first is not None else ())
        while todo:
            node = todo.pop()
            if node not in above and node.op != "get_attr" and not _holds_weight(self.gm, node):
                above[node] = None
                todo += node.all_input_nodes
        ends = [self._last_use(node) for node in above]
        return [end for end in ends if sum(bool(self.weights[n]) for n in self.nodes[:end]) <= largest]

    def _weights_of(self, node: Node) -> tuple[str, ...]:
        """The weights that are quantized inside a node, or that it reads through a quantizer."""
        return tuple(q.name for _, q in weights_read(self.gm, node) if not q.fake_fused)

    def cut(self, granularity: Granularity, largest: int) -> list[Block]:
        self.beside = self._read_by_the_first_layer(largest)
        blocks: list[Block] = []
        taken: set[str] = set()
        start, narrowest, width_there = 0, -1, 0
        layers = 0
        index = 0
        while index < len(self.nodes):
            node = self.nodes[index]
            layers += bool(self.weights[node])
            if layers:
                width = self._width(index)
                here = not self._continues(node, index)
                if here and (narrowest < start or width <= width_there):
                    narrowest, width_there = index, width
                wanted = granularity == "layer" or (width <= 1 and not self._inside_bottleneck(index))
                if here and wanted:
                    narrowest = index
                if (here and wanted) or (layers > largest and narrowest >= start):
                    blocks += self._block(start, narrowest, taken)
                    start = index = narrowest + 1
                    layers = 0
                    continue
            index += 1
        return blocks + self._block(start, len(self.nodes) - 1, taken)

    def _width(self, index: int) -> int:
        """How many computed tensors are still needed after a node."""
        computed = sum(1 for n in self.nodes[: index + 1] if n in self.computed and self.last_use[n] > index)
        return computed + sum(1 for end in self.beside if end > index)

    def _continues(self, node: Node, index: int) -> bool:
        """Whether the next node belongs to the same layer: its activation, its dropout, a reshape of its result.

        Values that are overwritten in place stay in one block with the nodes that do it: a block is run several times.
        """
        if index + 1 >= len(self.nodes):
            return False
        if any(index in between for between in self.writes):
            return True
        following = self.nodes[index + 1]
        if sole_reader(self.gm, node) is not following:  # what others also read belongs to no single layer
            return False
        spec = find_op(self.gm, following)
        if spec is None or len(following.all_input_nodes) > 1:
            return False
        return spec.elementwise or spec.family == "shape" or spec.name == "batch_norm"

    def _inside_bottleneck(self, index: int) -> bool:
        """Whether a cut after a node would separate a depthwise convolution from the pointwise ones it belongs to."""
        after = sum(position <= index for position, _ in self.layers)
        before, following, next_but_one = (
            self.layers[at][1] if 0 <= at < len(self.layers) else None for at in (after - 1, after, after + 1)
        )
        if before is None or following is None:
            return False
        if before.depthwise:
            return _pointwise(following)
        if not following.depthwise or next_but_one is None:
            return False
        outputs, inputs = before.weight.shape[:2]
        return _pointwise(before) and inputs < outputs and _pointwise(next_but_one, fewer_than=outputs)

    def _block(self, start: int, end: int, taken: set[str]) -> list[Block]:
        nodes = tuple(self.nodes[start : end + 1])
        inside = set(nodes)
        weights = [name for node in nodes for name in self.weights[node] if name not in taken]
        if not nodes:
            return []
        taken |= set(weights)
        inputs = dict.fromkeys(
            source
            for node in nodes
            for source in node.all_input_nodes
            if source not in inside and source.op != "get_attr" and not _holds_weight(self.gm, source)
        )
        outputs = [node for node in nodes if any(user not in inside for user in node.users)]
        return [Block(nodes, tuple(inputs), tuple(outputs), tuple(dict.fromkeys(weights)))]


def extract(gm: GraphModule, block: Block) -> fx.GraphModule:
    """A block as a separate module that shares everything with its graph."""
    graph, twins = fx.Graph(), dict[Node, Node]()
    for source in block.inputs:
        twins[source] = graph.placeholder(source.name)
    direct = [source for node in block.nodes for source in node.all_input_nodes]
    weights = [source for source in direct if _holds_weight(gm, source)]
    held = [source for source in direct if source.op == "get_attr"]
    for source in dict.fromkeys([*held, *(weight.all_input_nodes[0] for weight in weights)]):
        twins[source] = graph.get_attr(str(source.target))
    for source in dict.fromkeys(weights):
        twins[source] = graph.node_copy(source, twins.__getitem__)
    for node in block.nodes:
        twins[node] = graph.node_copy(node, twins.__getitem__)
    graph.output(tuple(twins[node] for node in block.outputs))
    return fail_silently(fx.GraphModule(gm, make_safe(graph)))


def _pointwise(layer: QuantizedLayer, fewer_than: int | None = None) -> bool:
    """Whether a layer is a convolution of single pixels over all channels, with fewer results than a number."""
    weight = layer.weight
    alone = weight.dim() > 2 and weight[0, 0].numel() == 1 and layer.call.groups == 1 and not layer.transposed
    return alone and (fewer_than is None or len(weight) < fewer_than)


def _holds_weight(gm: GraphModule, node: Node) -> bool:
    """Whether a node is the quantizer of a weight that a function uses: it belongs to the reader of the weight."""
    quantizer = quantizer_at(gm, node)
    return quantizer is not None and quantizer.side == "W"
