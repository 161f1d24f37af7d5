"""Which recovery steps a model has, and when they run."""

from __future__ import annotations

import pytest

from sparsebit.errors import ConfigError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import AdaRoundLayers, BiasCorrection, Brecq, Equalization
from tests.quantization.nets import config, images, residual


def steps(**changes: object) -> tuple[list[type], list[type]]:
    recovery = QuantModel(residual(), config(**changes), images()).recovery
    before, after = ([type(step) for step in recovery if step.stage == when] for when in ("before", "after"))
    return before, after


def test_steps_run_before_or_after_the_ranges_in_the_order_of_the_config() -> None:
    assert steps() == ([], [])
    asked = ["bias_correction", "equalization", "brecq"]
    assert steps(SCHEDULE__RECOVERY=asked) == ([Equalization], [BiasCorrection, Brecq])


def test_adaround_quantizers_bring_their_step() -> None:
    assert steps(W__QUANTIZER__TYPE="adaround") == ([], [AdaRoundLayers])
    assert steps(W__QUANTIZER__TYPE="adaround", SCHEDULE__RECOVERY=["brecq"]) == ([], [Brecq])


def test_wrong_options_are_found_before_any_work() -> None:
    with pytest.raises(ConfigError, match="brecq"):
        QuantModel(residual(), config(SCHEDULE__RECOVERY=[{"brecq": {"steps": 0}}]), images())
