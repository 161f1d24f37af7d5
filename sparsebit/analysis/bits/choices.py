"""The tensors to choose bits for: single weights, and activations in groups that share one config rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from sparsebit.analysis.bits.layer_bits import FLOAT
from sparsebit.config import Side
from sparsebit.graph.ops import bind
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.quantization import QuantModel


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Tensors that must have the same width, and the layers whose rules set it."""

    name: str
    side: Side
    tensors: tuple[str, ...]
    layers: tuple[str, ...]
    elements: int = 0
    """Number of values that are stored; only weights are."""
    scales: int = 0
    zero_points: int = 0

    def stored_bytes(self, bits: int) -> float:
        """Bytes of the quantized values at a width, plus 4 for every scale and one value for every zero point.

        Example:
            >>> weight = Choice(name="fc", side="W", tensors=("fc.weight",), layers=("fc",), elements=640, scales=10)
            >>> weight.stored_bytes(4), weight.stored_bytes(FLOAT)
            (360.0, 2560.0)
        """
        if bits == FLOAT:
            return self.elements * FLOAT / 8
        return (self.elements + self.zero_points) * bits / 8 + 4 * self.scales


@dataclass(frozen=True, kw_only=True)
class Product:
    """Multiply-accumulates of one operator, and what decides the widths of its two operands.

    ``operands`` are names of choices; None is one that nothing is chosen for, which stays at its ``fixed`` bits.
    """

    node: str
    macs: int
    operands: tuple[str | None, str | None]
    fixed: tuple[int, int] = (FLOAT, FLOAT)


def find_choices(qmodel: QuantModel, sides: tuple[Side, ...]) -> list[Choice]:
    """All choices on these sides, in the order of the graph."""
    found: list[Choice] = []
    if "W" in sides:
        found += _weights(qmodel)
    if "A" in sides:
        found += _activations(qmodel)
    return found


def find_products(qmodel: QuantModel, choices: list[Choice]) -> list[Product]:
    """Every operator with multiply-accumulates, and the choices that its operands depend on."""
    owner = {tensor: choice.name for choice in choices for tensor in choice.tensors}
    weight_of = {layer: t for t in qmodel.plan.weights() for layer in t.consumers}
    inputs_of: dict[str, list[Any]] = {}
    for planned in qmodel.plan.activations():
        for consumer in planned.consumers:
            inputs_of.setdefault(consumer, []).append(planned)
    found = []
    for node in qmodel.model.graph.nodes:
        call = bind(qmodel.model, node) if node.op.startswith("call_") else None
        if call is None or call.spec.macs is None or not (macs := call.macs):
            continue
        operands = [*inputs_of.get(node.name, [])[:2]]
        if node.name in weight_of:
            operands = [weight_of[node.name], *operands[:1]]
        elif call.weight_name is not None:
            operands = [None, *operands[:1]]
        operands += [None] * (2 - len(operands))
        first, second = operands
        found.append(
            Product(
                node=node.name,
                macs=macs,
                operands=tuple(owner.get(o.name) if o else None for o in (first, second)),  # type: ignore[arg-type]
                fixed=tuple(o.spec.bits if o else FLOAT for o in (first, second)),  # type: ignore[arg-type]
            )
        )
    return found


def _weights(qmodel: QuantModel) -> Iterator[Choice]:
    for planned in qmodel.plan.weights():
        quantizer = qmodel.quantizers[planned.name]
        if quantizer.fake_fused:
            continue
        layers = _rule_names(qmodel, planned.consumers)
        yield Choice(
            name=planned.name,
            side="W",
            tensors=(planned.name,),
            layers=layers,
            elements=fetch_tensor(qmodel.model, planned.producer).numel(),
            scales=quantizer.scale.numel(),
            zero_points=0 if quantizer.is_symmetric else quantizer.scale.numel(),
        )


def _activations(qmodel: QuantModel) -> Iterator[Choice]:
    """All inputs of an operator have one width, so tensors that are combined in one (an addition) are one choice."""
    planned = [t for t in qmodel.plan.activations() if not qmodel.quantizers[t.name].fake_fused]
    deciders = {tensor.name: set(tensor.consumers) or _makers(qmodel, tensor.producer) for tensor in planned}
    groups: list[tuple[list[str], set[str]]] = []
    for name, nodes in deciders.items():
        joined = [group for group in groups if group[1] & nodes]
        names = [member for group in joined for member in group[0]] + [name]
        groups = [group for group in groups if group not in joined]
        groups.append((names, nodes.union(*(group[1] for group in joined))))
    order = {tensor.name: index for index, tensor in enumerate(planned)}
    for names, nodes in sorted(groups, key=lambda group: min(order[name] for name in group[0])):
        ordered = sorted(names, key=order.__getitem__)
        inside = [node.name for node in qmodel.model.graph.nodes if node.name in nodes]
        yield Choice(
            name=ordered[0],
            side="A",
            tensors=tuple(ordered),
            layers=_rule_names(qmodel, tuple(inside), one_by_one=True),
        )


def _makers(qmodel: QuantModel, producer: str) -> set[str]:
    """The operator that decides the width of a tensor that no quantized operator reads: the one that computes it."""
    consumers = {name for tensor in qmodel.plan.activations() for name in tensor.consumers}
    node: Node | None = next(n for n in qmodel.model.graph.nodes if n.name == producer)
    while node is not None and node.name not in consumers:
        node = next(iter(node.all_input_nodes), None)
    return {node.name} if node is not None else set()


def _rule_names(qmodel: QuantModel, nodes: tuple[str, ...], *, one_by_one: bool = False) -> tuple[str, ...]:
    """Names that a rule may use: the dotted name of a module, the flat name of a function.

    With ``one_by_one`` a module that is called twice has its flat names, which distinguish the calls.
    """
    by_name = {node.name: node for node in qmodel.model.graph.nodes}
    modules = [str(node.target) for node in by_name.values() if node.op == "call_module"]
    names = []
    for name in nodes:
        node = by_name[name]
        dotted = node.op == "call_module" and not (one_by_one and modules.count(str(node.target)) > 1)
        names.append(str(node.target) if dotted else name)
    return tuple(dict.fromkeys(names))
