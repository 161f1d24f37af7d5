"""From requests to quantizers: one on each tensor, placed as early as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from sparsebit.config import Layer, QConfig
from sparsebit.numerics import Layout
from sparsebit.quantization.plan.layers import SKIPPED, Layers, is_skipped, layers_for_config
from sparsebit.quantization.plan.plan import PlannedEdge, PlannedTensor, QuantPlan
from sparsebit.quantization.plan.requests import Request, Requests
from sparsebit.quantization.plan.rules_act import require_rules_act
from sparsebit.quantization.plan.weights import plan_weights
from sparsebit.targets import TARGETS, Target


def make_plan(
    gm: GraphModule,
    config: QConfig,
    target: Target | None = None,
    *,
    known: Sequence[Layer] = (),
    owned: Sequence[str] = (),
) -> QuantPlan:
    """Decide for every tensor of a graph whether it is quantized, and say why.

    Args:
        gm: a captured graph.
        config: what the user asked for.
        target: the runtime; by default the one the config names as BACKEND.
        known: additional layers that patterns in the config may name, such as folded batch norms.
        owned: nodes that have their own quantizers.

    Raises:
        ConfigError: naming every pattern that matches no layer, or none that it could change.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from sparsebit.config import load_qconfig
        >>> from sparsebit.graph.capture import capture
        >>> gm = capture(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.zeros(1, 3, 8, 8))
        >>> [tensor.name for tensor in make_plan(gm, load_qconfig("int8_onnxruntime")).tensors]
        ['0.weight', 'input_1', '_1']
    """
    layers = Layers(gm, target or TARGETS[config.BACKEND])
    config.require_matched([*layers_for_config(gm), *known])
    requests = Requests(layers, config, frozenset(owned))
    require_rules_act(layers, config, requests, frozenset(owned), known)
    places = _Places(layers, requests)
    without = {*owned, *(node.name for node in requests.narrow)}
    weights, notes = plan_weights(layers, config, frozenset(without))
    return QuantPlan(
        target=layers.target.name,
        tensors=(*weights, *places.tensors({weight.name for weight in weights})),
        edges=tuple(places.edges()),
        notes=(*notes, *places.notes),
    )


@dataclass
class _Place:
    """A tensor that gets a quantizer."""

    node: Node
    for_all: bool  # every reader takes the quantized tensor
    readers: set[Node] = field(default_factory=set)
    requests: list[Request] = field(default_factory=list)
    maker: Request | None = None


class _Places:
    def __init__(self, layers: Layers, requests: Requests) -> None:
        self.layers, self.requests = layers, requests
        self.notes: list[str] = []
        self.places: dict[Node, _Place] = {}
        self.names: dict[Node, str] = {}
        self.grid_of: dict[tuple[Node, Node], Node] = {}  # (source, consumer) -> tensor with the quantizer
        self._wanted = {
            (source, request.node) for request in requests.accepted.values() for source in request.inputs
        }
        self._all_want: dict[Node, bool] = {}
        for request in requests.accepted.values():
            if request.rule.output and request.runs:
                tail = requests.tail(request.node)
                place = self.places.setdefault(tail, _Place(tail, for_all=True))
                place.maker = request
                place.readers |= set(layers.readers(tail))
        for request in requests.accepted.values():
            for source in request.inputs:
                self._place(source, request)

    def _place(self, source: Node, request: Request) -> None:
        below, at = request.node, source
        chain, higher = [source], source
        while (step := self.layers.above(higher)) is not None:
            higher = step
            chain.append(higher)
        covered = next((node for node in chain if node in self.places and self.places[node].for_all), None)
        if covered is not None:
            at = covered
        else:
            while (
                request.spec.granularity == "tensor"  # channels or tokens differ before a move
                and self._wanted_by_all(at)
                and (higher_tensor := self.layers.above(at)) is not None
                and self.layers.holds_floats(higher_tensor)
                and higher_tensor not in self.layers.infinite
                and not self.layers.changes_before(
                    higher_tensor, first := self._first_step(higher_tensor, at)
                )
            ):
                below, at = first, higher_tensor
            place = self.places.setdefault(at, _Place(at, for_all=False))
            place.readers.add(below)
        self.places[at].requests.append(request)
        self.grid_of[source, request.node] = at

    def _first_step(self, top: Node, bottom: Node) -> Node:
        """The reader of ``top`` on the way to ``bottom``."""
        while (source := self.layers.calls[bottom].activations[0]) is not top:
            bottom = source
        return bottom

    def _wanted_by_all(self, node: Node) -> bool:
        """Whether all readers of a node's numbers, moved or not, request them on a grid."""
        if node not in self._all_want:
            self._all_want[node] = False
            readers = list(self.layers.readers(node))
            self._all_want[node] = bool(readers) and all(
                self._wanted_by_all(user)
                if self.layers.moves(user) and node in self.layers.calls[user].activations
                else (node, user) in self._wanted
                for user in readers
            )
            above = self.layers.calls[node].activations[0] if self.layers.moves(node) else None
            if self._all_want[node] and above is not None and not self.layers.is_tensor(above):
                # One piece of a split: the others come from the same tensor, so all of them must agree.
                self._all_want[node] = all(
                    self._wanted_by_all(piece) for piece in self.layers.readers(above) if piece is not node
                )
        return self._all_want[node]

    def tensors(self, taken: set[str]) -> list[PlannedTensor]:
        """One tensor for each place, in the order of the graph, under names that no weight has."""
        order = {node: index for index, node in enumerate(self.layers.nodes)}
        places = sorted(self.places.values(), key=lambda p: order[p.node])
        for place in places:
            # A parameter that is a weight of one operator and an activation of another.
            self.names[place.node] = place.node.name + ("@input" if place.node.name in taken else "")
        return [self._tensor(place) for place in places]

    def _tensor(self, place: _Place) -> PlannedTensor:
        requests = place.requests or ([place.maker] if place.maker else [])
        specs = [request.spec for request in requests]
        marked = [request.spec for request in requests if self.layers.is_marker(request.node)]
        spec = max(marked or specs, key=lambda spec: (spec.bits, spec.dtype != "int"))
        if len(set(specs)) > 1:
            asked = ", ".join(f"{request.node.name} {request.spec.codes}" for request in requests)
            self.notes.append(
                f"{place.node.name} has one quantizer, {spec}, though its readers request {asked}"
            )
        consumers = tuple(dict.fromkeys(request.node.name for request in place.requests))
        reason = place.maker.reason if place.maker else requests[0].reason
        order = {node: index for index, node in enumerate(place.node.users)}
        return PlannedTensor(
            name=self.names[place.node],
            side="A",
            producer=place.node.name,
            readers=tuple(n.name for n in sorted(place.readers, key=lambda n: order.get(n, 0))),
            consumers=consumers,
            spec=spec,
            layout=Layout(kind=spec.granularity, group_size=spec.group_size),
            reason=reason,
        )

    def edges(self) -> list[PlannedEdge]:
        found: list[PlannedEdge] = []
        for node in self.layers.nodes:
            call = self.layers.calls.get(node)
            if not node.op.startswith("call_") or (
                self.layers.moves(node) and not self.layers.is_marker(node)
            ):
                continue
            sources = node.all_input_nodes if call is None else dict.fromkeys(call.activations)
            found += [self._edge(source, node) for source in sources if self.layers.holds_floats(source)]
        return found

    def _edge(self, source: Node, node: Node) -> PlannedEdge:
        request, at = self.requests.accepted.get(node), self.grid_of.get((source, node))
        reason = self.requests.refused.get(node, "")
        if node not in self.layers.calls:
            unknown = "an unknown operator stays in float; describe it with sparsebit.register_op"
            reason = SKIPPED if is_skipped(node, self.requests.config) else unknown
        elif request is not None:
            reason = request.reason if at is not None else "it is fused into the operator that computes it"
        elif (made := self._quantized_above(source)) is not None:
            reason, at = f"{reason}; {made.name} is quantized for all its readers", made
        return PlannedEdge(
            source=source.name,
            consumer=node.name,
            op=self.layers.op(node),
            tensor=self.names[at] if at is not None else None,
            reason=reason or "no rule quantizes this input",
        )

    def _quantized_above(self, source: Node | None) -> Node | None:
        while source is not None:
            if source in self.places and self.places[source].for_all:
                return source
            source = self.layers.above(source)
        return None
