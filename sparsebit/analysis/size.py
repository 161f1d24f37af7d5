"""Bytes of a model's parameters: as floats, and at their chosen widths."""

from __future__ import annotations

from sparsebit.analysis.bits.choices import find_choices
from sparsebit.analysis.bits.layer_bits import FLOAT
from sparsebit.graph.ops.estimate import weights_of
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.quantization import QuantModel


def float_bytes(qmodel: QuantModel) -> float:
    """All parameters as float32, batch norm folded as it is in the graph."""
    return other_bytes(qmodel) + sum(c.stored_bytes(FLOAT) for c in find_choices(qmodel, ("W",)))


def quantized_bytes(qmodel: QuantModel) -> float:
    """All parameters as they are stored: quantized values, scales and zero points, and what stays in float."""
    weights = find_choices(qmodel, ("W",))
    return other_bytes(qmodel) + sum(c.stored_bytes(qmodel.quantizers[c.name].bit) for c in weights)


def other_bytes(qmodel: QuantModel) -> int:
    """The parameters that no width is chosen for: biases, norms, weights that the plan leaves in float."""
    chosen = {name for choice in find_choices(qmodel, ("W",)) for name in choice.tensors}
    skipped = {id(p) for quantizer in qmodel.quantizers.values() for p in quantizer.parameters()}
    skipped |= {id(fetch_tensor(qmodel.model, t.producer)) for t in qmodel.plan.weights() if t.name in chosen}
    found = {
        id(parameter): parameter.nbytes
        for node in qmodel.model.graph.nodes
        for _, parameter in weights_of(qmodel.model, node)
    }
    return sum(size for key, size in found.items() if key not in skipped)
