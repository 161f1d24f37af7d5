"""The graph for placement: operators with their names, and where the numbers of a tensor come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.fx import GraphModule, Node

from sparsebit.config import Layer, QConfig
from sparsebit.graph.effects import overwritten
from sparsebit.graph.ops import OpCall, bind
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.value import TensorInfo
from sparsebit.targets import Target

SKIPPED = "SKIP_TRACE_MODULES names it"


def layers_for_config(gm: GraphModule) -> list[Layer]:
    """The operators of a graph, for the config to match its patterns against."""
    calls = {node: bind(gm, node) for node in gm.graph.nodes if node.op.startswith("call_")}
    return [Layer(names_of(node, call), call.placed_as if call else None) for node, call in calls.items()]


def names_of(node: Node, call: OpCall | None) -> tuple[str, ...]:
    """Every name a pattern may use for a node: dotted, flat, and for functions the module they are called in."""
    names = [str(node.target)] if node.op == "call_module" else []
    names.append(node.name)
    path = node.meta.get("module_path")
    if node.op != "call_module" and call is not None:
        names += [f"{path}.{call.spec.name}"] if path else []
        names += [call.weight_name] if Layers.is_weighted(call) and call.weight_name else []
    return tuple(dict.fromkeys(names))


def is_skipped(node: Node, config: QConfig) -> bool:
    """Whether a node is a module that ``SKIP_TRACE_MODULES`` keeps in float."""
    return node.op == "call_module" and any(
        fnmatchcase(str(node.target), pattern) for pattern in config.SKIP_TRACE_MODULES
    )


class Layers:
    """Properties of the nodes of one graph, each computed once."""

    def __init__(self, gm: GraphModule, target: Target) -> None:
        self.gm, self.target = gm, target
        self.nodes: list[Node] = list(gm.graph.nodes)
        self.calls: dict[Node, OpCall] = {
            node: call for node in self.nodes if node.op.startswith("call_") and (call := bind(gm, node))
        }
        self._floats: dict[Node, bool] = {}
        for node in self.nodes:  # in order, so that no lookup goes far back
            self._floats[node] = self._holds_floats(node)
        weighted = [node for node, call in self.calls.items() if self.is_weighted(call)]
        self.first_and_last = {weighted[0], weighted[-1]} if weighted else set()
        self.masked = self._masked()
        self.infinite = self._infinite()
        self._order = {node: index for index, node in enumerate(self.nodes)}
        self._writers = overwritten(gm)

    def _masked(self) -> set[Node]:
        """Tensors in which some numbers are masked by very low values, such as attention scores before a softmax.

        That is what ``masked_fill`` and ``where`` do, and the addition of a mask: of a tensor computed only from the
        model's inputs and constants, without any parameter or product.
        """
        masks: set[Node] = set()
        masked: set[Node] = set()
        for node in self.nodes:
            call, sources = self.calls.get(node), node.all_input_nodes
            if node.op == "placeholder" or (node.op == "get_attr" and not self._is_parameter(node)):
                masks.add(node)
            elif call is None:
                continue
            elif not call.weight_name and masks.issuperset(sources):
                if call.spec.family != "matmul" or len(sources) == 1:  # einsum also permutes
                    masks.add(node)
            elif (
                call.spec.masks == "chosen"
                or ((call.spec.elementwise or self.moves(node)) and not masked.isdisjoint(call.activations))
                or (call.spec.masks == "added" and not masks.isdisjoint(call.activations))
            ):
                masked.add(node)
        return masked

    def _infinite(self) -> set[Node]:
        """Tensors that were padded or filled with infinity, which no grid can represent, up to a max-pooling."""
        found: set[Node] = set()
        for node, call in self.calls.items():
            fills = call.spec.masks == "chosen" or call.spec.channels == "pad"
            numbers = [value for value in call.arguments.values() if isinstance(value, float)]
            if (fills and not all(map(math.isfinite, numbers))) or (
                self.moves(node) and call.spec.family != "pool" and call.activations[0] in found
            ):
                found.add(node)
        return found

    def _is_parameter(self, node: Node) -> bool:
        return isinstance(fetch_tensor(self.gm, str(node.target)), nn.Parameter)

    def op(self, node: Node) -> str | None:
        """The operator whose rules a node follows: its canonical one; a product with a parameter counts as linear."""
        call = self.calls.get(node)
        return call.placed_as if call is not None else None

    @staticmethod
    def is_weighted(call: OpCall) -> bool:
        """Whether a call multiplies by a weight with channels."""
        return call.spec.weight_axes is not None and call.weight_name is not None

    def names(self, node: Node) -> tuple[str, ...]:
        """Every name a pattern may use for a node."""
        return names_of(node, self.calls.get(node))

    def is_marker(self, node: Node) -> bool:
        """Whether a node is an ``nn.Identity`` that was kept with ``remove = False``: a point to quantize."""
        call = self.calls.get(node)
        return call is not None and getattr(call.module, "remove", True) is False

    def holds_floats(self, node: Node) -> bool:
        """Whether a node's value is one tensor of floating point; assumed if nothing was recorded."""
        return self._floats[node]

    def _holds_floats(self, node: Node) -> bool:
        value = node.meta.get("value")
        if isinstance(value, TensorInfo):
            return value.dtype.is_floating_point
        if node.op == "get_attr":
            return fetch_tensor(self.gm, str(node.target)).is_floating_point()
        if "value" in node.meta:
            return False
        call = self.calls.get(node)
        if call is None:
            return True
        if call.spec.family in ("size", "compare", "create") or call.spec.integers:
            return False
        if call.spec.family == "cast":
            kinds = [value for value in call.arguments.values() if isinstance(value, torch.dtype)]
            if kinds:
                return kinds[0].is_floating_point
        inputs = call.activations
        if call.spec.name == "getitem" and inputs:  # of a tuple, or of sizes
            return all(self.holds_floats(source) for source in inputs) or self.moves(inputs[0])
        return not call.spec.elementwise or not inputs or any(self.holds_floats(s) for s in inputs)

    def moves(self, node: Node) -> bool:
        """Whether a node passes on numbers of its first input unchanged."""
        call = self.calls.get(node)
        return call is not None and bool(call.activations) and call.moves

    def above(self, node: Node) -> Node | None:
        """The tensor whose numbers a moving node passes on, also through splits and tuples; None if there is none."""
        found: Node | None = node
        while found is not None:
            found = self.calls[found].activations[0] if self.moves(found) else None
            if found is None or self.is_tensor(found):
                return found
        return None

    def is_tensor(self, node: Node) -> bool:
        """Whether a node returns one tensor; assumed if nothing was recorded and its operator allows it."""
        value = node.meta.get("value")
        if value is None and "value" not in node.meta:
            call = self.calls.get(node)
            return call is None or not call.spec.several
        return isinstance(value, TensorInfo)

    def origin(self, node: Node) -> Node:
        """The node that computed the numbers of a tensor, before any moves."""
        while (higher := self.above(node)) is not None:
            node = higher
        return node

    def changes_before(self, source: Node, reader: Node) -> bool:
        """Whether a tensor is overwritten in place before a node reads it: a quantizer after it would miss that."""
        return any(self._order[writer] < self._order[reader] for writer in self._writers.get(source, ()))

    def readers(self, node: Node) -> Iterator[Node]:
        """The nodes that read the numbers of a node, and not only its size."""
        for user in node.users:
            call = self.calls.get(user)
            if call is None or call.spec.family != "size":
                yield user

    def users_through_moves(self, node: Node) -> Iterator[Node]:
        """Operators, or the output, that read the numbers of a node directly or after they were moved."""
        for user in self.readers(node):
            if self.moves(user) and node in self.calls[user].activations:
                yield from self.users_through_moves(user)
            else:
                yield user

    def sole_reader(self, node: Node) -> Node | None:
        """The only node that reads this one, if there is exactly one."""
        readers = list(self.readers(node))
        return readers[0] if len(readers) == 1 else None
