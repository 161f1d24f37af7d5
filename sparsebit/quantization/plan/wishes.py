"""Which operators should read integers: by rule, by config, and by what stands around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Node

from sparsebit.config import QConfig, TensorSpec
from sparsebit.quantization.plan.layers import Layers
from sparsebit.targets import OpRule

_PAIRS = ("add", "mul")  # integer kernels of these take two tensors


@dataclass(frozen=True)
class Wish:
    """What is wanted for one operator."""

    node: Node
    rule: OpRule
    spec: TensorSpec  # of its inputs
    inputs: tuple[Node, ...]  # the tensors to quantize
    runs: bool  # whether it will then execute on integers, so that its result may be needed on a grid too
    reason: str


class Wishes:
    """Walks the operators once and decides for each; ``why_not`` holds the reason of those that stay in float."""

    def __init__(self, layers: Layers, config: QConfig, owned: frozenset[str]) -> None:
        self.layers, self.config, self.target = layers, config, layers.target
        self.owned = owned  # nodes whose module brings quantizers of its own
        self.head = self._fused()
        self.why_not: dict[Node, str] = {}
        self.granted: dict[Node, Wish] = {}
        waiting = [wish for node in layers.calls for wish in self._consider(node)]
        self._join(waiting)
        self.granted = {node: self.granted[node] for node in layers.nodes if node in self.granted}

    def _fused(self) -> dict[Node, Node]:
        """Activations that are computed inside the operator before them: each with that operator."""
        head: dict[Node, Node] = {}
        for node, call in self.layers.calls.items():
            sources = call.activations
            if len(sources) != 1 or self.layers.sole_reader(sources[0]) is not node:
                continue
            source = sources[0]
            first = head.get(source, source)
            op = self.layers.op(node)
            if (
                self.target.fuses(self.layers.op(first), op)
                or self.target.fuses(self.layers.op(source), op)
                or self._will_fold(source, node)
            ):
                head[node] = first
        return head

    def _will_fold(self, source: Node, node: Node) -> bool:
        """Whether a node is a batch norm that is kept for training or tuning, and folded in the end.

        One that is still there though all were folded does not fold, and is an operator of its own.
        """
        schedule = self.config.SCHEDULE
        if (schedule.FUSE_BN and not schedule.BN_TUNING) or self.layers.op(node) != "batch_norm":
            return False
        call = self.layers.calls.get(source)
        return call is not None and self.layers.is_weighted(call) and call.spec.family != "embedding"

    def tail(self, node: Node) -> Node:
        """The last of the activations that are computed inside an operator; it hands the result on."""
        while (reader := self.layers.sole_reader(node)) is not None and self.head.get(reader) in (
            node,
            self.head.get(node, node),
        ):
            node = reader
        return node

    def _consider(self, node: Node) -> Iterator[Wish]:
        """Grant or refuse what can be decided alone; yield what depends on the neighbours."""
        layers, op = self.layers, self.layers.op(node)
        call = layers.calls[node]
        rule = self.target.rule(op)
        inputs = tuple(
            source
            for source in call.activations
            if layers.holds_floats(source)
            and not (source.op == "get_attr" and str(source.target) == call.weight_name)  # dot(w, w)
        )
        names = layers.names(node)
        if node.name in self.owned:
            self.why_not[node] = "it brings quantizers of its own"
        elif layers.moves(node) or not inputs:
            return
        elif rule is None or not rule.inputs:
            fused = f"it is computed inside {self.head[node].name}" if node in self.head else None
            self.why_not[node] = fused or f"{op} runs in float on {self.target.name}"
        elif node in self.head and (
            self.config.SCHEDULE.DISABLE_UNNECESSARY_QUANT or self._will_fold(self.head[node], node)
        ):
            self.why_not[node] = f"it is computed inside {self.head[node].name}"
        elif call.spec.channels == "softmax" and any(source in layers.masked for source in inputs):
            self.why_not[node] = (
                "its input is masked: numbers near minus infinity would take up the whole grid"
            )
        else:
            first_or_last = node in layers.first_and_last
            spec = self.config.spec_for("A", names=names, op=op, first_or_last=first_or_last)
            runs = self._weight_on_integers(node, rule)
            wish = Wish(node, rule, spec, inputs, runs, rule.because)
            if not spec.enabled:
                self.why_not[node] = "the config leaves its input in float"
            elif op == "add" and self.config.A.QADD.ENABLE_QUANT is False:
                self.why_not[node] = "A.QADD.ENABLE_QUANT is false"
            elif op == "add" and self.config.A.QADD.ENABLE_QUANT:
                if len(set(inputs)) < 2:
                    self.why_not[node] = "it adds no second tensor"
                else:
                    self.granted[node] = wish
            elif rule.when == "always":
                self.granted[node] = wish
            elif rule.when == "if_asked":
                if any(rule.matches(names, op) for rule in self.config.rules("A")):
                    self.granted[node] = wish
                else:
                    self.why_not[node] = f"{rule.because}; a rule in A.SPECIFIC would ask for it"
            else:
                yield wish

    def _weight_on_integers(self, node: Node, rule: OpRule) -> bool:
        if not rule.weight:
            return True
        spec = self.config.spec_for(
            "W",
            names=self.layers.names(node),
            op=self.layers.op(node),
            first_or_last=node in self.layers.first_and_last,
        )
        return spec.enabled and self.layers.is_weighted(self.layers.calls[node])

    def _join(self, waiting: list[Wish]) -> None:
        """Grant what stands between integers: all its inputs are on grids, and so is something after it."""
        integers = {self.layers.origin(s) for wish in self.granted.values() for s in wish.inputs}
        order = {node: index for index, node in enumerate(self.layers.nodes)}
        joined: list[Wish] = []
        for wish in sorted([*self.granted.values(), *waiting], key=lambda wish: order[wish.node]):
            if wish.node not in self.granted:
                inputs = self._inputs_to_join(wish, integers)
                if inputs is None:
                    continue
                wish = Wish(wish.node, wish.rule, wish.spec, inputs, wish.runs, wish.reason)
                joined.append(wish)
            if wish.rule.output and wish.runs:
                integers.add(self.layers.origin(self.tail(wish.node)))
        for wish in reversed(joined):
            if wish.rule.output and not any(
                user in self.granted for user in self.layers.users_through_moves(self.tail(wish.node))
            ):
                self.why_not[wish.node] = "nothing after it runs on integers"
            else:
                self.granted[wish.node] = wish

    def _inputs_to_join(self, wish: Wish, integers: set[Node]) -> tuple[Node, ...] | None:
        layers = self.layers
        if layers.op(wish.node) in _PAIRS and len(wish.inputs) < 2:
            self.why_not[wish.node] = "its other operand is a constant"
            return None
        inside = [
            source
            for source in wish.inputs
            if layers.op(source) in wish.rule.inside and layers.sole_reader(source) is wish.node
        ][:1]
        apart = [source for source in wish.inputs if layers.origin(source) not in integers]
        if apart and not inside:  # where one operand is inside, the others are quantized for the sake of that
            self.why_not[wish.node] = f"{apart[0].name} comes in float"
            return None
        return tuple(source for source in wish.inputs if source not in inside)
