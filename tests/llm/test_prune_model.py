"""Smaller language models of the same class: fewer hidden channels, heads and blocks; saved, loaded, generating."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.prune_model import block_changes
from tests.llm.models import DECODERS, sharp, tokens


def test_widths_and_blocks_go_and_the_rest_generates(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = sharp("llama")
    small = llm.prune(model, tokens(), hidden=0.25, heads=0.5, blocks=1)
    config = small.config
    assert (config.intermediate_size, config.num_attention_heads, config.num_hidden_layers) == (96, 2, 2)
    assert model.config.num_hidden_layers == 3 and len(model.model.layers) == 3
    small.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = tokens(8)[None]
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, small(ids).logits)
    generated = again.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert generated.shape == (1, 11)


def test_a_width_that_the_config_leaves_to_its_default_is_written_into_it() -> None:
    model = DECODERS["gpt2"]()
    assert model.config.n_inner is None
    small = llm.prune(model, tokens(), hidden=0.5)
    assert small.config.n_inner == 2 * model.config.n_embd and model.config.n_inner is None
    assert small.transformer.h[0].mlp.c_fc.weight.shape[1] == small.config.n_inner


def test_the_block_that_changes_least_goes() -> None:
    model = sharp("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
        model.model.layers[1].mlp.down_proj.weight.zero_()
    rows = tokens(32)[None]
    changes = block_changes(model, rows)
    assert changes.index(min(changes)) == 1 and changes[1] < 1e-6
    small = llm.prune(model, tokens(), blocks=1)
    with torch.no_grad():
        assert torch.allclose(small(rows).logits, model(rows).logits, atol=1e-5)
    assert [layer.self_attn.layer_idx for layer in small.model.layers] == [0, 1]


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(SparsebitError, match="no part to prune was named"):
        llm.prune(DECODERS["llama"]())
    with pytest.raises(SparsebitError, match="choosing blocks needs data"):
        llm.prune(DECODERS["llama"](), blocks=1)
    with pytest.raises(SparsebitError, match="3 of 3 blocks cannot be removed"):
        llm.prune(DECODERS["llama"](), tokens(), blocks=3)
    with pytest.raises(SparsebitError, match="the heads of GPT2LMHeadModel are unknown"):
        llm.prune(DECODERS["gpt2"](), heads=0.5)
    with pytest.raises(
        SparsebitError, match=r"hidden channels of Falcon.*are unknown\n  expected: ordinary linear"
    ):
        llm.prune(DECODERS["falcon"](), hidden=0.5)  # its layers multiply by themselves
    with pytest.raises(SparsebitError, match=r"hidden: expected at least 0 and less than 1\n  got: 1.5"):
        llm.prune(DECODERS["llama"](), hidden=1.5)
