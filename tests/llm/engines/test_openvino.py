"""What the engine reads is what was written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.openvino import OPENVINO
from tests.llm.engines.reading import require_same_reading


@pytest.mark.skipif(bool(missing_modules(OPENVINO)), reason="the engine is not installed")
def test_weights_and_predictions_are_those_of_the_model(tmp_path: Path) -> None:
    opened = require_same_reading(OPENVINO, "openvino", tmp_path)
    assert opened.rounding("model.layers.0.mlp.up_proj.weight") is None, "it multiplies in float"
