"""Every family in llama.cpp, with its variants; and models that llama.cpp would compute differently are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.gguf.families import FAMILIES
from tests.llm.formats.gguf.family_models import ABSENT, MODELS, needs_llama_cpp, quantized_model
from tests.llm.formats.test_compressed_tensors import quantized


def require_proof(folder: Path, name: str, **settings: object) -> None:
    report = quantized_model(name, **settings).export(folder / "model.gguf", "gguf")  # type: ignore[arg-type]
    assert report.proven, str(report)
    assert bool(report.cut_to) == (name == "mistral"), "llama.cpp knows no windows there"


def test_every_family_has_a_model() -> None:
    assert set(MODELS) == set(FAMILIES)


@needs_llama_cpp
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_runs_the_same_model(tmp_path: Path, name: str) -> None:
    require_proof(tmp_path, name, tie_word_embeddings=FAMILIES[name].head == "embedding")


@needs_llama_cpp
@pytest.mark.parametrize("name", ["llama", "gemma", "phi", "gpt2", "falcon", "mixtral", "qwen2_moe"])
def test_with_a_tied_and_quantized_head(tmp_path: Path, name: str) -> None:
    require_proof(tmp_path, name, head=4, tie_word_embeddings=True)


@needs_llama_cpp
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("phi3", {"tie_word_embeddings": False, "head": 8}),
        (
            "phi3",
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.75}},
        ),
        ("gemma3_text", {"tie_word_embeddings": False, "final_logit_softcapping": 1.0}),
        ("gemma3_text", {"layer_types": ["sliding_attention"] * 3}),
        ("gemma3_text", {"layer_types": ["full_attention"] * 3}),
        ("gpt2", {"tie_word_embeddings": False, "head": 8}),
        ("gpt_neox", {"use_parallel_residual": False}),
        ("falcon", {"new_decoder_architecture": True}),
        ("falcon", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
        ("falcon", {"multi_query": False, "num_kv_heads": ABSENT}),
        ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": False}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_variants(tmp_path: Path, name: str, settings: dict[str, object]) -> None:
    require_proof(tmp_path, name, **settings)


@needs_llama_cpp
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"rotates_neighbours": False}),
        ("gemma", {"norms_add_one": False}),
        ("gpt_neox", {"splits_by_head": False}),
        ("gemma2", {"windows": False}),
        ("gemma2", {"settings": {}}),
        ("mixtral", {"settings": {"num_experts": "add_expert_count"}}),
    ],
)
def test_a_wrong_fact_about_a_family_is_found(
    tmp_path: Path, name: str, change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, name, replace(FAMILIES[name], **change))  # type: ignore[arg-type]
    report = quantized_model(name).export(tmp_path / "model.gguf", "gguf")
    assert not report.ok or report.cut_to, "without windows the context is short"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, r"llama.cpp hard-codes the activation for llama(.|\n)*silu"),
        ("gemma", {"tie_word_embeddings": False}, "hard-codes tie_word_embeddings for gemma"),
        ("gemma2", {"final_logit_softcapping": None}, "hard-codes final_logit_softcapping(.|\n)*a number"),
        ("gemma2", {"query_pre_attn_scalar": 16}, "hard-codes query_pre_attn_scalar(.|\n)*32"),
        (
            "gemma3_text",
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "hard-codes the order of sliding-window layers",
        ),
        ("phi3", {"head_dim": 32}, "hard-codes head_dim(.|\n)*16"),
        (
            "gemma2",
            {"layer_types": ["full_attention"] * 3},
            "hard-codes the order of sliding-window layers(.|\n)*at least one",
        ),
        ("smollm3", {"no_rope_layers": [1] * 5}, "hard-codes no_rope_layers"),
        ("olmoe", {"num_key_value_heads": 2}, "hard-codes num_key_value_heads(.|\n)*4"),
        ("falcon", {"alibi": True}, "hard-codes alibi"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "hard-codes scale_attn_by_inverse_layer_idx"),
        ("qwen2_moe", {"norm_topk_prob": True}, "hard-codes norm_topk_prob"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "hard-codes decoder_sparse_step"),
    ],
)
def test_what_llama_cpp_computes_differently_is_refused(
    tmp_path: Path, name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SparsebitError, match=message):
        quantized_model(name, **settings).export(tmp_path / "model.gguf", "gguf")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_family_without_an_architecture_says_so() -> None:
    with pytest.raises(SparsebitError, match=r"written for opt: llama\.cpp has no architecture for it"):
        quantized("opt").export("never.gguf", "gguf")
