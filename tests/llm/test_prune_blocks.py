"""Fewer blocks: those that change least are left out, and the rest is what it was, also when it is loaded again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import find_hidden, run_model
from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.prune_blocks import block_changes, drop_blocks
from tests.llm.models import _GROUPED, DECODERS, MORE_DECODERS, ROUTES, _from_config, sharp, tokens
from tests.llm.test_prune_model import FAMILIES, generates, make, run, saved_and_loaded


@pytest.mark.parametrize(
    "name", sorted({*FAMILIES} - {"falcon_grouped", "falcon_alibi", "qwen3_moe", "granitemoe"})
)
def test_blocks_of_every_family(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make(name)
    small: Any = llm.prune(model, tokens(16), blocks=1)
    assert type(small) is type(model) and small.config.num_hidden_layers == 2
    kept = [_first_matrix(block) for block in find_stack(small).modules]
    for block in find_stack(model).modules:
        if not any(torch.equal(_first_matrix(block), one) for one in kept):
            block.register_forward_hook(_skip, with_kwargs=True)
    assert torch.allclose(run(small), run(model), atol=1e-5)
    again = saved_and_loaded(small, tmp_path, caplog)
    assert torch.equal(run(again), run(small))
    if name != "bert":
        generates(again)


def _first_matrix(block: nn.Module) -> Tensor:
    return next(parameter for parameter in block.parameters() if parameter.dim() > 1)


def _skip(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """What came in goes out."""
    _, hidden = find_hidden(args, kwargs)
    return hidden if isinstance(output, Tensor) else (hidden, *output[1:])


def test_the_block_that_changes_least_goes() -> None:
    model = sharp("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight.zero_()
        model.model.layers[1].mlp.down_proj.weight.zero_()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    rows = tokens(32)[None]
    changes = block_changes(model.train(), rows)
    assert model.training and block_changes(model.eval(), rows) == changes
    assert changes.index(min(changes)) == 1 and changes[1] < 1e-6
    small = llm.prune(model, tokens(), blocks=1)
    with torch.no_grad():
        assert torch.allclose(small(rows).logits, model(rows).logits, atol=1e-5)
    assert [layer.self_attn.layer_idx for layer in small.model.layers] == [0, 1]


def first_removed(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model without its first block."""
    monkeypatch.setattr("sparsebit.llm.prune_blocks.block_changes", lambda model, rows: [0.0, 1.0, 1.0])
    return drop_blocks(model, tokens(8)[None], 1)


def test_a_block_that_its_class_would_make_differently_in_its_new_place_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scaled: Any = DECODERS["gpt2"]()
    scaled.config.scale_attn_by_inverse_layer_idx = True
    with pytest.raises(
        SparsebitError,
        match=r"block 1 cannot become block 0 of GPT2LMHeadModel\n  where: +attn.scaling\n"
        r"  expected: 0.125\n  got: +0.25\n  next: +remove a different number of blocks",
    ):
        first_removed(scaled, monkeypatch)
    mixed: Any = MORE_DECODERS["qwen3_moe"]()
    mixed.config.mlp_only_layers = [0]  # its first block has no experts
    mixed = type(mixed)(mixed.config).eval()
    with pytest.raises(SparsebitError, match="block 1 cannot become block 0 of Qwen3MoeForCausalLM"):
        first_removed(mixed, monkeypatch)
    alternating = DECODERS["gemma2"]()  # which its config lists, so that the list can be shortened
    assert first_removed(alternating, monkeypatch).config.layer_types == [
        "full_attention",
        "sliding_attention",
    ]


# Configs with a number for the encoder too, with a list of kinds of feed-forward parts, and with a dtype as text, which
# saving leaves there.
OTHER_CONFIGS: dict[str, Callable[[], Any]] = {
    "bart": ROUTES["bart"],
    "t5": ROUTES["t5"],
    "exaone_moe": lambda: _from_config(
        "exaone_moe",
        **_GROUPED,
        head_dim=16,
        num_experts=4,
        moe_intermediate_size=32,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
    ),
    "apertus": lambda: _from_config(
        "apertus", **_GROUPED, rope_parameters={"rope_theta": 1e4, "rope_type": "default"}
    ),
}


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_the_config_describes_the_blocks_that_are_left(name: str, tmp_path: Path) -> None:
    model: Any = OTHER_CONFIGS[name]()
    model.save_pretrained(tmp_path)
    small: Any = llm.prune(model, tokens(16), blocks=1)
    small.save_pretrained(tmp_path)
    again = type(small).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(*(run_model(one, tokens(12)[None]).logits for one in (again, small)))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gemma3n_text", r"block 1 cannot become block 1 of Gemma3nForCausalLM\n  where: +self_attn"),
        ("rwkv", r"cannot be built with 1 blocks\n  where: the initialization[\s\S]*division by zero"),
        ("gemma4_unified_text", r"no config that gives the number of blocks(.|\n)*per_layer_config"),
    ],
)
def test_blocks_that_something_else_counts_are_refused(kind: str, reason: str) -> None:
    settings: dict[str, Any] = {"head_dim": 16, "hidden_size_per_layer_input": 16}
    settings |= {"vocab_size_per_layer_input": 96, "num_kv_shared_layers": 0, "laurel_rank": 8}
    if kind == "gemma4_unified_text":
        settings = {"head_dim": 16}
    if kind == "rwkv":  # its blocks are initialized by their depth, from 0 to 1
        settings = {"num_hidden_layers": 2}
    model = _from_config(kind, **(_GROUPED | settings))
    with pytest.raises(SparsebitError, match=reason):
        llm.prune(model, tokens(16), blocks=1)


def test_a_number_that_leaves_no_block_is_refused() -> None:
    with pytest.raises(SparsebitError, match=r"3 of 3 blocks cannot be removed\n  expected: from 1 to 2"):
        drop_blocks(DECODERS["llama"](), tokens(8)[None], 3)
