"""GGUF files: blocks by their definition, the package gguf's own reading, and llama.cpp where it is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import sharp, tokenizer

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
needs_llama_cpp = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed"
)


@needs_gguf
@needs_llama_cpp
def test_rows_in_a_wrong_order_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized()
    model.tokenizer = tokenizer()
    monkeypatch.setattr("sparsebit.llm.formats.gguf.tensors.row_order", lambda *_: None)
    report = model.export(tmp_path / "model.gguf", "gguf")
    assert len(report.wrong_weights) == 6 and report.divergence is not None
    assert report.divergence > report.tolerance and not report.ok


@needs_gguf
@needs_llama_cpp
def test_a_tied_head_is_written_once(tmp_path: Path) -> None:
    import gguf

    model = sharp("llama")
    model.config.tie_word_embeddings = True
    model.tie_weights()
    config = {"W": {"BIT": 8}, "HEAD": {"BIT": 4}, "METHOD": "rtn"}
    made = llm.quantize(model, None, config, tokenizer=tokenizer(), progress=False)
    report = made.export(tmp_path / "model.gguf", "gguf")
    assert report.proven, str(report)
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["token_embd.weight"] == "Q4_0" and "output.weight" not in kinds
    assert kinds["blk.0.attn_q.weight"] == "Q8_0" and kinds["blk.0.attn_norm.weight"] == "F32"


def test_grids_it_has_no_blocks_for_are_refused() -> None:
    with pytest.raises(SparsebitError, match="its blocks are 32 input channels, the groups are 16"):
        quantized(GROUP_SIZE=16).export("never.gguf", "gguf")
    with pytest.raises(SparsebitError, match="not an fp16 number"):
        quantized(SCHEME="affine").export("never.gguf", "gguf")
    with pytest.raises(SparsebitError, match=r"a gguf file ends in \.gguf"):
        quantized().export("never", "gguf")
    if importlib.util.find_spec("gguf") is not None:
        with pytest.raises(SparsebitError, match="needs a tokenizer, and the model has none"):
            quantized().export("never.gguf", "gguf")
    assert not Path("never.gguf").exists()
