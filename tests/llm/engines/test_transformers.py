"""What the engine reads is what was written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.transformers import TRANSFORMERS
from tests.llm.engines.reading import require_same_reading


@pytest.mark.skipif(bool(missing_modules(TRANSFORMERS)), reason="the engine is not installed")
def test_weights_and_predictions_are_those_of_the_model(tmp_path: Path) -> None:
    opened = require_same_reading(TRANSFORMERS, "compressed-tensors", tmp_path)
    assert opened.rounding("model.layers.0.mlp.up_proj.weight") is None, "it multiplies in float"
