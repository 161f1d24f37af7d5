"""Folders for ONNX Runtime GenAI, opened and run by it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.format import holder_of
from tests.llm.decoder.family_models import VARIANTS, family_model
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import sharp, tokens

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_genai") is None, reason="onnxruntime-genai is not installed"
)


@needs_engine
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {}),
        ("mistral", {"BIT": 3, "SCHEME": "affine", "GROUP_SIZE": 64}),
        ("qwen2", {"BIT": 8, "SPECIFIC": {"*.k_proj": {"BIT": 4}, "*.v_proj": {"BIT": 0}}}),
        ("llama", {"BIT": 4, "SCHEME": "affine", "SPECIFIC": {"*.mlp.*": {"BIT": 2}}}),
    ],
)
def test_the_engine_runs_the_same_model(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    report = quantized(name, **settings).export(tmp_path / "out", "onnxruntime-genai")
    assert report.proven, str(report)


@needs_engine
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scheme", ["full-range", "affine"])
@pytest.mark.parametrize("bits", [4, 8])
def test_head_and_embedding(tmp_path: Path, tied: bool, scheme: str, bits: int) -> None:
    model = sharp("llama")
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
    config = {"METHOD": "rtn", "HEAD": {"BIT": bits, "SCHEME": scheme, "GROUP_SIZE": 32}}
    made = llm.quantize(model, None, config, progress=False)
    report = made.export(tmp_path / "out", "onnxruntime-genai", ids=torch.arange(3, 9))
    assert report.proven, str(report)


@needs_engine
@pytest.mark.parametrize("name", VARIANTS)
def test_every_family(tmp_path: Path, name: str) -> None:
    """Weights bit for bit and logits, of a prompt and of steps after it, past the window where there is one."""
    made = llm.quantize(family_model(name), None, {"METHOD": "rtn"}, progress=False)
    report = made.export(tmp_path / "out", "onnxruntime-genai", ids=tokens(12), rounding_budget=0.0)
    assert report.proven and report.weights == len(made.weights), str(report)
    assert abs(report.divergence or 0) < 1e-9, "all products are computed in float"


@needs_engine
@pytest.mark.parametrize("name", ["gemma2", "gpt2", "gpt_neox"])
def test_families_with_8_bit_activations_and_a_quantized_head(tmp_path: Path, name: str) -> None:
    config = {"METHOD": "rtn", "HEAD": {"BIT": 4, "GROUP_SIZE": 32}}
    made = llm.quantize(family_model(name), None, config, progress=False)
    report = made.export(tmp_path / "out", "onnxruntime-genai", ids=tokens(12), rounding_budget=10.0)
    linear = [
        key
        for key in made.weights
        if holder_of(made.model, key.removesuffix(".weight")) in ("linear", "conv1d")
    ]
    assert report.proven and report.rounded_layers == len(linear), str(report)


@needs_engine
def test_long_texts_have_their_own_rotations(tmp_path: Path) -> None:
    import onnxruntime_genai

    made = llm.quantize(family_model("phi3, longrope"), None, {"METHOD": "rtn"}, progress=False)
    made.export(tmp_path / "out", "onnxruntime-genai", ids=tokens(4), rounding_budget=0.0)
    engine = onnxruntime_genai.Model(str(tmp_path / "out"))
    for length in (16, 17, 24):  # the model was first made for 16 positions
        settings = onnxruntime_genai.GeneratorParams(engine)
        settings.set_search_options(max_length=32)
        generator = onnxruntime_genai.Generator(engine, settings)
        generator.append_tokens(tokens(length)[None].numpy().astype("int32"))
        found = torch.from_numpy(np.array(generator.get_output("logits")))
        with torch.no_grad():
            assert torch.allclose(found, made.model(tokens(length)[None]).logits, atol=1e-3), length


@needs_engine
def test_what_the_engine_is_told(tmp_path: Path) -> None:
    made = llm.quantize(family_model("opt"), None, {"METHOD": "rtn"}, progress=False)
    made.export(tmp_path / "out", "onnxruntime-genai", ids=tokens(4))
    model = json.loads((tmp_path / "out" / "genai_config.json").read_text())["model"]
    assert model["type"] == "llama", "the engine has no name for this family"
    assert model["decoder"]["inputs"]["position_ids"] == "position_ids", "its positions are learned"
    assert (model["context_length"], model["decoder"]["num_key_value_heads"]) == (64, 4)


@needs_engine
def test_a_model_without_special_tokens(tmp_path: Path) -> None:
    nothing = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    made = llm.quantize(family_model("llama", **nothing), None, {"METHOD": "rtn"}, progress=False)
    report = made.export(tmp_path / "out", "onnxruntime-genai", ids=tokens(4), rounding_budget=0.0)
    assert report.proven, str(report)


def test_heads_that_the_attention_of_the_engine_does_not_take_are_refused() -> None:
    config = {"METHOD": "rtn", "W": {"GROUP_SIZE": 16}}
    made = llm.quantize(family_model("llama", head_dim=20), None, config, progress=False)
    with pytest.raises(
        SparsebitError, match="onnxruntime-genai folders do not support heads of this size"
    ) as it:
        made.export("never", "onnxruntime-genai")
    assert (it.value.expected, it.value.got) == ("a multiple of 8 channels", "20 channels")
