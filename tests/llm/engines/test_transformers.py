"""What the engine reads is what was written for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.transformers import TRANSFORMERS
from tests.llm.engines.reading import require_same_reading
from tests.llm.folders.test_stored_tensors import encoder
from tests.llm.models import tokens


@pytest.mark.skipif(bool(missing_modules(TRANSFORMERS)), reason="the engine is not installed")
def test_weights_and_predictions_are_those_of_the_model(tmp_path: Path) -> None:
    opened = require_same_reading(TRANSFORMERS, "compressed-tensors", tmp_path)
    assert opened.rounding("model.layers.0.mlp.up_proj.weight") is None, "it multiplies in float"


@pytest.mark.skipif(bool(missing_modules(TRANSFORMERS)), reason="the engine is not installed")
def test_an_encoder_is_proven_by_its_outputs_and_predicts_nothing(tmp_path: Path) -> None:
    small = llm.quantize(encoder(), None, {"W": {"BIT": 4}, "METHOD": "rtn"}, progress=False)
    report = small.export(tmp_path / "out", "compressed-tensors")
    assert report.proven and report.agreement is None and report.weights == len(small.weights)
    assert "its outputs, treated as distributions, differ by" in str(report)
    with pytest.raises(SparsebitError, match="the model does not predict tokens"):
        small.evaluate(tokens(), length=16)
