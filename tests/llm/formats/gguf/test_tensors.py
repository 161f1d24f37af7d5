"""Tensors of a file: rows that move as a whole, matrices that stay in float, stacks of experts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.gguf.families import FAMILIES
from sparsebit.llm.formats.gguf.tensors import file_name, row_order
from tests.llm.formats.gguf.family_models import make_model, needs_llama_cpp
from tests.llm.models import tokenizer


def test_rows_of_a_fused_matrix() -> None:
    config = SimpleNamespace(model_type="gpt_neox", num_attention_heads=2, hidden_size=4)
    found = row_order("gpt_neox.layers.0.attention.query_key_value.bias", config, FAMILIES["gpt_neox"])
    assert found is not None and found.tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert row_order("gpt_neox.layers.0.attention.dense.weight", config, FAMILIES["gpt_neox"]) is None


@needs_llama_cpp
@pytest.mark.parametrize(
    ("name", "ignored"), [("gpt2", "*c_*"), ("mixtral", "*experts*"), ("gemma", "*mlp*")]
)
def test_matrices_that_stay_in_float(tmp_path: Path, name: str, ignored: str) -> None:
    config = {"W": {"BIT": 4, "GROUP_SIZE": 32}, "HEAD": {"BIT": 4}, "IGNORE": [ignored], "METHOD": "rtn"}
    made = llm.quantize(make_model(name), None, config, tokenizer=tokenizer(), progress=False)
    report = made.export(tmp_path / "model.gguf", "gguf")
    assert report.proven, str(report)


def test_experts_of_one_stack_have_one_type_of_block(tmp_path: Path) -> None:
    made, other = (
        llm.quantize(make_model("mixtral"), None, config, tokenizer=tokenizer(), progress=False)
        for config in ({"W": {"BIT": bits, "GROUP_SIZE": 32}, "METHOD": "rtn"} for bits in (4, 8))
    )
    expert = "model.layers.1.mlp.experts.down_proj[2]"
    made.weights[expert] = other.weights[expert]
    with pytest.raises(
        SparsebitError, match=r"layers.1.mlp.experts.down_proj' exactly: its experts share one"
    ):
        made.export(tmp_path / "model.gguf", "gguf")


def test_a_tensor_without_a_name_is_refused() -> None:
    names = SimpleNamespace(get_name=lambda name, try_suffixes: None)
    with pytest.raises(SparsebitError, match=r"gguf has no name for the tensor 'model.extra.weight'"):
        file_name(names, "model.extra.weight")
