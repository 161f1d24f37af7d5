"""Folders for ONNX Runtime GenAI, opened and run by it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import sharp, with_uneven_norms

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
def test_norms_of_queries_and_keys(tmp_path: Path) -> None:
    made = llm.quantize(with_uneven_norms(sharp("qwen3")), None, {"METHOD": "rtn"}, progress=False)
    report = made.export(tmp_path / "out", "onnxruntime-genai", ids=torch.arange(3, 9))
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


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(SparsebitError, match="its blocks are 16 to 256 input channels"):
        quantized(GROUP_SIZE=8).export("never", "onnxruntime-genai")
    with pytest.raises(SparsebitError, match="written for some architectures only"):
        quantized("gpt2").export("never", "onnxruntime-genai")
