"""Levels chosen by what they cost: all at 8 bits where that is cheap, float where one product spoils the rest."""

from __future__ import annotations

import importlib.util
import logging
import math
from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.llm.formats import accuracy_level
from sparsebit.llm.formats.accuracy_level import IN_8_BITS, IN_FLOAT, choose_levels
from tests.llm.models import sharp, tokens

BAD = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def model() -> llm.LanguageModel:
    """A model with one channel in front of one layer that is so large that 8 bits are left for nothing else."""
    module = sharp("llama")
    mlp = module.model.layers[1].mlp
    with torch.no_grad():
        mlp.up_proj.weight[5] *= 3000
        mlp.down_proj.weight[:, 5] /= 3000
    config = {"W": {"BIT": 8, "GROUP_SIZE": 32}, "METHOD": "rtn"}
    return llm.quantize(module, None, config, progress=False)


def test_only_the_product_that_costs_too_much_is_in_float(
    model: llm.LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    ids = tokens(16)
    all_in_8_bits = choose_levels(model.model, model.weights, ids, budget=10.0)
    assert set(all_in_8_bits.by_layer.values()) == {IN_8_BITS} and len(all_in_8_bits.by_layer) == 21
    with caplog.at_level(logging.WARNING):
        chosen = choose_levels(model.model, model.weights, ids, budget=all_in_8_bits.cost / 4)
    assert chosen.by_layer[BAD] == IN_FLOAT and chosen.cost <= all_in_8_bits.cost / 4
    assert sum(level == IN_FLOAT for level in chosen.by_layer.values()) <= 4
    assert "layers are computed in float, because 8-bit activations cost more than" in caplog.text
    in_float = choose_levels(model.model, model.weights, ids, budget=0.0)
    assert set(in_float.by_layer.values()) == {IN_FLOAT} and in_float.cost == 0.0


def test_a_cost_that_is_no_number_is_too_much(
    model: llm.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy_level, "divergence", lambda *_: math.nan)
    chosen = choose_levels(model.model, model.weights, tokens(4), budget=10.0)
    assert set(chosen.by_layer.values()) == {IN_FLOAT}


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_genai") is None, reason="onnxruntime-genai is not installed"
)
def test_the_engine_is_as_close_as_the_levels_say(model: llm.LanguageModel, tmp_path: Path) -> None:
    ids = tokens(16)
    exact = model.export(tmp_path / "float", "onnxruntime-genai", ids=ids, rounding_budget=0.0)
    assert exact.proven and exact.rounded_layers == 0 and abs(exact.divergence or 0) < 1e-6
    cheap = model.export(tmp_path / "8 bits", "onnxruntime-genai", ids=ids, rounding_budget=10.0)
    assert cheap.rounded_layers == 21 and "rounds activations to 8 bits before 21 layers" in str(cheap)
    assert (cheap.divergence or 0) > 10 * abs(exact.divergence or 0)
