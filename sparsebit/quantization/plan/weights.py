"""Which weights are quantized, and what shares a scale in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn
from torch.fx import Node

from sparsebit.config import QConfig, TensorSpec
from sparsebit.graph.ops import OpCall
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.numerics import Layout
from sparsebit.quantization.plan.layers import SKIPPED, Layers, is_skipped
from sparsebit.quantization.plan.plan import PlannedTensor
from sparsebit.targets import TARGETS


def plan_weights(
    layers: Layers, config: QConfig, owned: frozenset[str]
) -> tuple[list[PlannedTensor], list[str]]:
    """A quantizer for every weight that the target runs on integers, and notes about those that cannot have one."""
    readers: dict[tuple[object, ...], list[_Reader]] = {}
    notes: list[str] = []
    for node, call in layers.calls.items():
        op = layers.op(node)
        rule = layers.target.rule(op)
        if node.name in owned:
            continue
        if rule is None or not rule.weight:
            notes += _float_weight(layers, node)
            continue
        first_or_last = node in layers.first_and_last
        spec = config.spec_for("W", names=layers.names(node), op=op, first_or_last=first_or_last)
        why_not = SKIPPED if is_skipped(node, config) else why_not_quantize(layers, node, call)
        if why_not is not None:
            notes += [f"the weight of {node.name} stays in float: {why_not}"] if spec.enabled else []
        elif spec.enabled:
            assert call.weight_name is not None
            tensor = fetch_tensor(layers.gm, call.weight_name)
            # A parametrized weight is computed on each access, so only its name stays the same.
            same = id(tensor) if isinstance(tensor, nn.Parameter) else call.weight_name
            key = (same, *weight_axis(call))
            readers.setdefault(key, []).append(_Reader(node, call, spec, rule.because))
    planned: list[PlannedTensor] = []
    for sharing in readers.values():
        widest = max(sharing, key=lambda reader: (reader.spec.bits, reader.spec.dtype != "int"))
        name = _unique(widest.call.weight_name or "", widest.node, planned)
        if len({reader.spec for reader in sharing}) > 1:
            asked = ", ".join(f"{reader.node.name} {reader.spec.codes}" for reader in sharing)
            notes.append(
                f"{name} has one quantizer, {widest.spec}, though it is shared and requested as {asked}"
            )
        names = tuple(reader.node.name for reader in sharing)
        planned.append(
            PlannedTensor(
                name=name,
                side="W",
                producer=sharing[0].call.weight_name or "",
                readers=names,
                consumers=names,
                spec=widest.spec,
                layout=weight_layout(widest.call, widest.spec),
                reason=widest.reason,
            )
        )
    return planned, notes


def _float_weight(layers: Layers, node: Node) -> list[str]:
    """A note about a layer whose weight no config can quantize for this target."""
    op, target = layers.op(node), layers.target.name
    if op is None or not layers.is_weighted(layers.calls[node]):
        return []
    elsewhere = [
        name for name, other in TARGETS.items() if (rule := other.rule(op)) is not None and rule.weight
    ]
    advice = f"; BACKEND {' or '.join(elsewhere)} quantizes it" if elsewhere else ""
    return [f"the weight of {node.name} stays in float: {op} has no integer weights on {target}{advice}"]


class _Reader(NamedTuple):
    """An operator and its requested weight grid."""

    node: Node
    call: OpCall
    spec: TensorSpec
    reason: str


def why_not_quantize(layers: Layers, node: Node, call: OpCall) -> str | None:
    """The reason why a weight must stay in float, or None."""
    if not layers.is_weighted(call) or call.weight_name is None:
        return "it is computed by the model as it runs"
    if not fetch_tensor(layers.gm, call.weight_name).is_floating_point():
        return "it does not hold floating point numbers"
    if call.arguments.get("max_norm") is not None:
        return "max_norm rewrites it as the model runs"
    if any(layers.changes_before(source, node) for source in node.all_input_nodes if source.op == "get_attr"):
        return "the model overwrites it as it runs"
    return None


def weight_axis(call: OpCall) -> tuple[int, int]:
    """The axis of a weight's output channels, and in how many groups a transposed convolution has them."""
    assert call.spec.weight_axes is not None and call.weight_name is not None
    # A table of rows that are looked up one by one: each row is its own.
    axis = 0 if call.spec.family == "embedding" else call.spec.weight_axes[0]
    axis %= fetch_tensor(call.owner, call.weight_name).dim()
    return axis, call.groups if axis == 1 and call.spec.weight_axes == (1, 0) else 1


def weight_layout(call: OpCall, spec: TensorSpec) -> Layout:
    """Which elements share a scale: one per output channel, within each group for a transposed convolution."""
    if spec.granularity == "tensor":
        return Layout()
    axis, groups = weight_axis(call)
    assert call.spec.weight_axes is not None and call.weight_name is not None
    dims = fetch_tensor(call.owner, call.weight_name).dim()
    input_axis = 1 if call.spec.family == "embedding" else call.spec.weight_axes[1] % dims
    # A vector has only inputs, and no channels to divide.
    axes = () if spec.granularity == "group" and dims == 1 else (axis,)
    return Layout(
        kind=spec.granularity, axes=axes, input_axis=input_axis, group_size=spec.group_size, groups=groups
    )


def _unique(weight: str, node: Node, taken: Sequence[PlannedTensor]) -> str:
    """The weight's own name, or with the node's name if the weight is quantized along two axes."""
    names = {tensor.name for tensor in taken}
    return weight if weight not in names else f"{weight}@{node.name}"
