"""llama.cpp in a process of its own: a file that it cannot run is an error of ours, not the end of the process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.llama_cpp import LLAMA_CPP, ROTATE_NEIGHBOURS, SPLIT_QUERIES
from sparsebit.llm.formats.gguf.families import FAMILIES
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import tokenizer


@pytest.mark.skipif(bool(missing_modules(LLAMA_CPP)), reason="gguf and xllamacpp are not installed")
def test_a_file_it_cannot_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized()
    model.tokenizer = tokenizer()
    # No norms in the file.
    monkeypatch.setattr("sparsebit.llm.formats.gguf.tensors.float_state", lambda *_, **__: {})
    report = model.export(tmp_path / "model.gguf", "gguf")
    assert not report.ok and "\n  llama.cpp cannot run it: " in str(report)


@pytest.mark.skipif(bool(missing_modules(LLAMA_CPP)), reason="gguf and xllamacpp are not installed")
def test_another_expert_at_a_near_tie_is_explained(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(58)  # at one position, two experts differ by 0.0025 nats
    model = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=96,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            num_local_experts=4,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5 if parameter.dim() > 1 else 1
    ids = torch.randint(96, (16,), generator=torch.Generator().manual_seed(58))
    small = llm.quantize(model, None, {"W": {"BIT": 8, "GROUP_SIZE": 32}, "METHOD": "rtn"}, progress=False)
    small.tokenizer = tokenizer()
    report = small.export(tmp_path / "model.gguf", "gguf", ids=ids)
    assert report.proven, str(report)
    assert report.divergence > 0.001 + 4 * report.rounding_cost, "the usual rounding does not explain it"
    assert report.tie_cost > 10 * report.rounding_cost
    assert "two experts are nearly tied and the other one is chosen" in str(report)


def test_what_is_missing_is_named() -> None:
    wanted = [name for name in ("gguf", "xllamacpp") if importlib.util.find_spec(name) is None]
    assert missing_modules(LLAMA_CPP) == wanted


def test_rows_are_moved_back_where_the_writer_moves_them() -> None:
    families = FAMILIES.values()
    assert {one.architecture for one in families if one.rotates_neighbours} == set(ROTATE_NEIGHBOURS)
    assert {one.architecture for one in families if one.splits_by_head} == set(SPLIT_QUERIES)
