"""Which operators should read quantized inputs: by the target's rule, by the config, and by their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch.fx import Node

from sparsebit.config import Problem, QConfig, TensorSpec
from sparsebit.config.engine.problems import raise_problems
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.value import TensorInfo
from sparsebit.numerics.layout import activation_axis
from sparsebit.quantization.plan.layers import SKIPPED, Layers, is_skipped
from sparsebit.quantization.plan.plan import INSIDE
from sparsebit.targets import OpRule
from sparsebit.targets.schemes import SIDES


@dataclass(frozen=True)
class Request:
    """One operator that may read quantized inputs."""

    node: Node
    rule: OpRule
    spec: TensorSpec  # of its inputs
    inputs: tuple[Node, ...]  # the tensors to quantize
    runs: bool  # whether it then runs on integers, so that its result may have to be quantized too
    reason: str


class Requests:
    """Decides for each operator. ``refused`` has the reason for each that stays in float."""

    def __init__(self, layers: Layers, config: QConfig, owned: frozenset[str]) -> None:
        self.layers, self.config, self.target = layers, config, layers.target
        self.owned = owned  # nodes whose module has its own quantizers
        self.head = self._fused()
        self.refused: dict[Node, str] = {}
        self.narrow: set[Node] = set()  # refused with their weights
        self.accepted: dict[Node, Request] = {}
        self.beyond_config: dict[Node, str] = {}  # refused before the config was asked
        waiting = [request for node in layers.calls for request in self._consider(node)]
        self._join(waiting)
        self.accepted = {node: self.accepted[node] for node in layers.nodes if node in self.accepted}
        raise_problems(
            config.source, [p for one in self.accepted.values() for p in self._channel_problems(one)]
        )

    def _fused(self) -> dict[Node, Node]:
        """Activations that are fused into the operator before them, each with that operator."""
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
        """Whether a node is a batch norm that is kept for training or tuning, and folded later.

        If batch norms were already folded, a remaining one cannot be folded, and is a separate operator.
        """
        schedule = self.config.SCHEDULE
        if (schedule.FUSE_BN and not schedule.BN_TUNING) or self.layers.op(node) != "batch_norm":
            return False
        call = self.layers.calls.get(source)
        return call is not None and self.layers.is_weighted(call) and call.spec.family != "embedding"

    def tail(self, node: Node) -> Node:
        """The last of the activations that are fused into an operator; it returns the result."""
        while (reader := self.layers.sole_reader(node)) is not None and self.head.get(reader) in (
            node,
            self.head.get(node, node),
        ):
            node = reader
        return node

    def _consider(self, node: Node) -> Iterator[Request]:
        """Accept or refuse an operator if possible without its neighbours; otherwise yield it."""
        layers, call = self.layers, self.layers.calls[node]
        inputs = tuple(
            source
            for source in call.activations
            if layers.holds_floats(source)
            and not (source.op == "get_attr" and str(source.target) == call.weight_name)  # dot(w, w)
        )
        refused = self._refused_by_target(node, inputs)
        if refused is not None:
            self.beyond_config[node] = refused
            if inputs and not layers.moves(node):
                self.refused[node] = refused
            return
        rule = self.target.rule(layers.op(node)) or _MARKED
        spec = self.config.spec_for(
            "A", names=layers.names(node), op=layers.op(node), first_or_last=node in layers.first_and_last
        )
        request = Request(node, rule, spec, inputs, self._weight_on_integers(node, rule), rule.because)
        refused = self._refused_by_config(request)
        if refused is not None:
            self.refused[node] = refused
        elif (rule.when == "joins" and not self._adds_by_config(node)) or self._is_narrow(request):
            yield request
        else:
            self.accepted[node] = request

    def _refused_by_target(self, node: Node, inputs: tuple[Node, ...]) -> str | None:
        """Why no config can quantize the inputs of an operator, or None."""
        layers, op = self.layers, self.layers.op(node)
        rule = self.target.rule(op)
        if node.name in self.owned:
            return "it has its own quantizers"
        if is_skipped(node, self.config):
            return SKIPPED
        if not inputs:
            return "it does not read floating-point numbers"
        if any(layers.changes_before(source, node) for source in inputs):
            return "its input is overwritten in place before it is read"
        if layers.is_marker(node):
            return None
        if layers.moves(node):
            return "it only moves values, so it runs on the grid of its input"
        if node in self.head and (
            rule is None
            or self.config.SCHEDULE.DISABLE_UNNECESSARY_QUANT
            or self._will_fold(self.head[node], node)
        ):
            return f"{INSIDE} {self.head[node].name}"
        if rule is None or not rule.inputs:
            return f"{op} runs in float on {self.target.name}"
        if any(source in layers.infinite for source in inputs):
            return "its input is padded or filled with infinity, which no grid can represent"
        masked = layers.calls[node].spec.channels == "softmax" and any(s in layers.masked for s in inputs)
        return (
            "its input is masked: values near minus infinity would take up most of the range"
            if masked
            else None
        )

    def _refused_by_config(self, request: Request) -> str | None:
        node, rule = request.node, request.rule
        names, op = self.layers.names(node), self.layers.op(node)
        if not request.spec.enabled:
            return "the config leaves its input in float"
        if op == "add" and self.config.A.QADD.ENABLE_QUANT is False:
            return "A.QADD.ENABLE_QUANT is false"
        if self._adds_by_config(node):
            return "it adds no second tensor" if len(set(request.inputs)) < 2 else None
        if rule.when == "if_asked" and not any(rule.matches(names, op) for rule in self.config.rules("A")):
            setting = "A.QADD.ENABLE_QUANT: true" if op == "add" else f'A.SPECIFIC: {{"{names[0]}": [...]}}'
            return f"{op} is not quantized by default on {self.target.name}; set {setting}"
        return None

    def _channel_problems(self, request: Request) -> Iterator[Problem]:
        """Inputs that the config gives a scale per channel, where the runtime cannot run the operator with it."""
        names, spec = self.layers.names(request.node), request.spec
        for source in request.inputs if spec.granularity == "channel" else ():
            value = source.meta.get("value")
            dims = len(value.shape) if isinstance(value, TensorInfo) else 0
            axis = activation_axis(dims, spec.layout)
            if axis not in request.rule.channel_axes.get(dims, (axis,)):
                scheme = spec.scheme.replace("channel", "tensor")
                yield Problem(
                    path=f"A of layer {names[0]!r}",
                    message="QSCHEME",
                    expected=f"{scheme} with BACKEND {self.target.name}",
                    got=f"{spec.scheme!r} along axis {axis} of {dims}",
                    hint=f'set A.SPECIFIC: {{"{names[0]}": [QSCHEME, {scheme}]}}',
                )

    def _is_narrow(self, request: Request) -> bool:
        """Whether an operator is too small to be worth the conversion to integers, and no rule of the config names it.

        If it reads the model's input, this holds only if a gate reads its result, since the gate's product is then in
        float.
        """
        layers, node, (channels, products) = self.layers, request.node, request.rule.narrow
        call, names, op = layers.calls[node], layers.names(node), layers.op(node)
        if not channels or not request.runs or call.weight_name is None or call.spec.weight_axes is None:
            return False
        weight = fetch_tensor(layers.gm, call.weight_name)
        width = weight.shape[call.spec.weight_axes[0]]
        asked = any(rule.matches(names, op) for side in SIDES for rule in self.config.rules(side))
        if asked or width > channels or weight.numel() > width * products:
            return False
        gated = any(
            layers.op(reader) in ("sigmoid", "hardsigmoid") for reader in layers.readers(self.tail(node))
        )
        return gated or layers.origin(request.inputs[0]).op != "placeholder"

    def _adds_by_config(self, node: Node) -> bool:
        return self.layers.op(node) == "add" and bool(self.config.A.QADD.ENABLE_QUANT)

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

    def _join(self, waiting: list[Request]) -> None:
        """Accept operators between integers: all inputs are quantized, and so is an operator after them."""
        integers = {self.layers.origin(s) for request in self.accepted.values() for s in request.inputs}
        order = {node: index for index, node in enumerate(self.layers.nodes)}
        joined: list[Request] = []
        for request in sorted([*self.accepted.values(), *waiting], key=lambda request: order[request.node]):
            if request.node not in self.accepted:
                inputs = self._inputs_to_join(request, integers)
                if inputs is None:
                    if request.rule.weight:
                        self.narrow.add(request.node)
                        self.refused[request.node] += ", and the operator is too small to quantize it for"
                    continue
                request = replace(request, inputs=inputs)
                joined.append(request)
            if request.rule.output and request.runs:
                integers.add(self.layers.origin(self.tail(request.node)))
        for request in reversed(joined):
            if (
                request.rule.when == "joins"
                and request.rule.output
                and not any(
                    user in self.accepted for user in self.layers.users_through_moves(self.tail(request.node))
                )
            ):
                self.refused[request.node] = "nothing after it runs on integers"
            else:
                self.accepted[request.node] = request

    def _inputs_to_join(self, request: Request, integers: set[Node]) -> tuple[Node, ...] | None:
        layers = self.layers
        if len(layers.calls[request.node].spec.activations) == 2 and len(request.inputs) < 2:
            self.refused[request.node] = "its other operand is a constant"
            return None
        inside = [
            source
            for source in request.inputs
            if layers.op(source) in request.rule.inside and layers.sole_reader(source) is request.node
        ][:1]
        apart = [source for source in request.inputs if layers.origin(source) not in integers]
        if apart and not inside:  # if one operand is on integers, the others are quantized as well
            self.refused[request.node] = self._float_input(layers.origin(apart[0]))
            return None
        return tuple(source for source in request.inputs if source not in inside)

    def _float_input(self, source: Node) -> str:
        """Why an input is in float: its own reason, and not that of an input further up."""
        op = self.layers.op(source)
        if op is None or source in self.refused or source in self.accepted:
            return f"its input {source.name} is not quantized"
        return f"its input {source.name} is not quantized: the result of {op} is float on {self.target.name}"


_MARKED = OpRule(because="nn.Identity with remove=False marks a point to quantize")
