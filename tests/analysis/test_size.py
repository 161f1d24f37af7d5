"""Bytes of a model's parameters, counted once for everybody."""

from __future__ import annotations

from sparsebit.analysis.bits.choices import find_choices
from sparsebit.analysis.size import float_bytes, other_bytes, quantized_bytes
from tests.report.samples import quantized


def test_sizes_follow_the_bits() -> None:
    eight, four = quantized("int8_onnxruntime"), quantized("w4a8")
    assert quantized_bytes(four) < quantized_bytes(eight) < float_bytes(eight) / 2


def test_every_part_counts_alike() -> None:
    """Recipes, mixed precision and the report show the same bytes: values, scales, zero points, and the rest."""
    qmodel = quantized("int8_onnxruntime")
    choices = find_choices(qmodel, ("W",))
    weights = sum(choice.stored_bytes(8) for choice in choices)
    assert quantized_bytes(qmodel) == weights + other_bytes(qmodel)
    parameters = [
        p for name, p in qmodel.model.named_parameters() if not name.endswith(("scale", "zero_point"))
    ]
    assert float_bytes(qmodel) == sum(p.nbytes for p in parameters)
