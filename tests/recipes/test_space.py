"""What can be tried: from mild to strong, and from cheap to expensive."""

from __future__ import annotations

from sparsebit.config import load_qconfig
from sparsebit.recipes import Goals
from sparsebit.recipes.space import LEVELS, structures


def test_the_space_goes_from_mild_to_strong_and_cheap_to_dear() -> None:
    mild = [s.name for s in structures(Goals(size=0.2), (0.5, 0.0))]
    assert mild[:3] == ["8-bit weights", "mixed bits within the size", "4-bit weights"]
    assert mild[3] == "50% pruned, 8-bit weights"
    assert "mixed" not in "".join(s.name for s in structures(Goals(), (0.0,), mixed=False))
    assert [level.costs for level in LEVELS] == sorted(level.costs for level in LEVELS)
    for level in LEVELS:
        for variant in level.variants:
            assert variant.apply(load_qconfig("int8_onnxruntime")) != load_qconfig("int8_onnxruntime")


def test_learnt_rounding_goes_before_the_biases_are_corrected() -> None:
    start = load_qconfig("int8_onnxruntime", ["SCHEDULE.RECOVERY=[equalization, bias_correction]"])
    varied = LEVELS[-1].variants[0].apply(start)
    assert [step.name for step in varied.SCHEDULE.RECOVERY] == ["equalization", "adaround", "bias_correction"]
