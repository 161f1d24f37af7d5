"""Scaled rotary embeddings in llama.cpp, beyond the length that the model was trained with."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.errors import SparsebitError
from tests.llm.formats.gguf.family_models import needs_llama_cpp, quantized_model
from tests.llm.formats.gguf.test_families import require_proof

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}


@needs_llama_cpp
def test_scaling_of_layers_that_a_model_does_not_have(tmp_path: Path) -> None:
    rope = {"sliding_attention": PLAIN, "full_attention": YARN}
    require_proof(tmp_path, "olmo3", rope_parameters=rope, layer_types=["sliding_attention"] * 5)


@needs_llama_cpp
@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("llama", LINEAR),
        ("llama", LLAMA3),
        ("llama", YARN | {"beta_fast": 16.0, "attention_factor": 1.5}),
        ("granite", LLAMA3),
        ("qwen2", LINEAR),
        ("qwen3", YARN | {"attention_factor": 1.5}),
        ("olmo3", {"sliding_attention": PLAIN | {"rope_theta": 10000.0}, "full_attention": YARN}),
        ("phi3", LONG),
        ("gemma3_text", {"sliding_attention": PLAIN, "full_attention": LINEAR}),
    ],
)
def test_llama_cpp_scales_as_transformers_does(tmp_path: Path, name: str, rope: dict[str, object]) -> None:
    more = {"original_max_position_embeddings": 16} if rope is LONG else {}
    require_proof(tmp_path, name, rope_parameters=rope, **more)


@pytest.mark.parametrize(
    ("name", "rope", "message"),
    [
        (
            "qwen2",
            LLAMA3,
            r"does not compute these rotary embeddings for qwen2(.|\n)*default or linear or yarn",
        ),
        ("qwen2", YARN | {"beta_fast": 16.0}, r"rope_parameters(.|\n)*yarn with beta_fast: 32(.|\n)*16"),
        (
            "olmo3",
            {"sliding_attention": PLAIN, "full_attention": YARN},
            r"rope_theta: 10000.0 in sliding-window layers\n +got: +100.0",
        ),
        ("llama", PLAIN | {"partial_rotary_factor": 0.5}, r"partial_rotary_factor: 1\n +got: +0.5"),
        ("llama", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, r"got: +dynamic"),
        (
            "gemma3_text",
            {"sliding_attention": LINEAR, "full_attention": PLAIN},
            "default in sliding-window layers",
        ),
    ],
)
def test_other_scalings_are_refused(tmp_path: Path, name: str, rope: dict[str, object], message: str) -> None:
    with pytest.raises(SparsebitError, match=message):
        quantized_model(name, rope_parameters=rope).export(tmp_path / "model.gguf", "gguf")
    assert not list(tmp_path.iterdir())
