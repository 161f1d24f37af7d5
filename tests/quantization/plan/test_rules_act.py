"""A rule that matches layers and cannot change any of them is refused, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.config import load_qconfig
from sparsebit.errors import ConfigError
from sparsebit.graph.capture import capture
from sparsebit.quantization import QuantModel
from sparsebit.quantization.plan import make_plan
from tests.quantization.nets import config


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), nn.GELU()).eval()


X = torch.zeros(1, 3, 8, 8)


@pytest.mark.parametrize(
    ("side", "pattern", "reason"),
    [
        ("A", "1", "_1: it is computed inside _0"),
        ("A", "2", "_2: it only moves values, so it runs on the grid of its input"),
        ("A", "op:gelu", "_4: gelu runs in float on onnxruntime"),
        ("W", "op:gelu", "_4: gelu has no integer weights on onnxruntime"),
    ],
)
def test_a_rule_that_changes_nothing_is_an_error(side: str, pattern: str, reason: str) -> None:
    settings: dict[str, Any] = {f"{side}__SPECIFIC": {pattern: ["QUANTIZER.BIT", 4]}}
    with pytest.raises(ConfigError) as caught:
        make_plan(capture(net(), X), load_qconfig(config("onnxruntime", **settings)))
    assert f"{side}.SPECIFIC['{pattern}']: changes nothing" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "rule",
    [
        {"1": ["QUANTIZER.DISABLE", True]},  # it has what it asks for
        {"*": ["QUANTIZER.BIT", 4]},  # some of what it matches changes
        {"0": ["QUANTIZER.BIT", 4]},
    ],
)
def test_other_rules_are_accepted(rule: dict[str, list[Any]]) -> None:
    make_plan(capture(net(), X), load_qconfig(config("onnxruntime", A__SPECIFIC=rule)))


def test_a_rule_for_a_batch_norm_that_was_folded_is_accepted() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    QuantModel(model, config("onnxruntime", A__SPECIFIC={"1": ["QUANTIZER.BIT", 4]}), example_inputs=(X,))
