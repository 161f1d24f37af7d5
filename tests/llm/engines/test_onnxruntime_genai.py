"""What the engine reads is what was written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.onnxruntime_genai import ONNXRUNTIME_GENAI
from tests.llm.engines.reading import require_same_reading


@pytest.mark.skipif(bool(missing_modules(ONNXRUNTIME_GENAI)), reason="the engine is not installed")
def test_weights_and_predictions_are_those_of_the_model(tmp_path: Path) -> None:
    opened = require_same_reading(ONNXRUNTIME_GENAI, "onnxruntime-genai", tmp_path)
    rounding = opened.rounding("model.layers.0.mlp.up_proj.weight")
    assert rounding is not None and rounding.block == 32, "8-bit activations, in the groups of the weight"
