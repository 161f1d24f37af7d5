"""Which weights are quantized, and what shares a scale in each."""

from __future__ import annotations

from torch.fx import Node

from sparsebit.config import QConfig, TensorSpec
from sparsebit.graph.ops import OpCall
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.quantization.granularity import Rows
from sparsebit.quantization.plan.layers import Layers
from sparsebit.quantization.plan.plan import PlannedTensor


def plan_weights(
    layers: Layers, config: QConfig, owned: frozenset[str]
) -> tuple[list[PlannedTensor], list[str]]:
    """A quantizer for every weight the target runs on integers, and notes about those that could not get one."""
    planned: dict[tuple[int, Rows, TensorSpec], PlannedTensor] = {}
    notes: list[str] = []
    for node, call in layers.calls.items():
        op = layers.op(node)
        rule = layers.target.rule(op)
        if rule is None or not rule.weight or node.name in owned:
            continue
        first_or_last = node in layers.first_and_last
        spec = config.spec_for("W", names=layers.names(node), op=op, first_or_last=first_or_last)
        why_not = why_not_quantize(layers, node, call)
        if why_not is not None:
            notes += [f"the weight of {node.name} stays in float: {why_not}"] if spec.enabled else []
            continue
        if not spec.enabled:
            continue
        assert call.weight_name is not None
        tensor, rows = fetch_tensor(layers.gm, call.weight_name), weight_rows(call, spec)
        key = (id(tensor), rows, spec)
        before = planned.get(key)
        planned[key] = PlannedTensor(
            name=before.name if before else _unique(call.weight_name, node, planned.values()),
            side="W",
            producer=before.producer if before else call.weight_name,
            readers=(*before.readers, node.name) if before else (node.name,),
            consumers=(*before.consumers, node.name) if before else (node.name,),
            spec=spec,
            rows=rows,
            reason=rule.because,
        )
    return list(planned.values()), notes


def why_not_quantize(layers: Layers, node: Node, call: OpCall) -> str | None:
    """The reason a weight must stay as it is, or None."""
    if not layers.is_weighted(call) or call.weight_name is None:
        return "it is computed by the model as it runs"
    if not fetch_tensor(layers.gm, call.weight_name).is_floating_point():
        return "it holds no floating point numbers"
    if call.arguments.get("max_norm") is not None:
        return "max_norm rewrites it as the model runs"
    return None


def weight_rows(call: OpCall, spec: TensorSpec) -> Rows:
    """What shares a scale: along the output channels, of each group for a transposed convolution."""
    assert call.spec.weight_axes is not None and call.weight_name is not None
    if spec.granularity == "tensor":
        return Rows()
    # A table of rows that are looked up one by one: each row is its own.
    axis = 0 if call.spec.family == "embedding" else call.spec.weight_axes[0]
    axis %= fetch_tensor(call.owner, call.weight_name).dim()
    groups = call.arguments.get("groups", 1) if call.spec.name.startswith("conv_transpose") else 1
    assert isinstance(groups, int)
    return Rows(
        kind=spec.granularity, axis=axis, group_size=spec.group_size, groups=groups if axis == 1 else 1
    )


def _unique(weight: str, node: Node, taken: object) -> str:
    """The weight's own name, or with the node's where one weight is quantized in two ways."""
    names = {tensor.name for tensor in taken}  # type: ignore[attr-defined]
    return weight if weight not in names else f"{weight}@{node.name}"
