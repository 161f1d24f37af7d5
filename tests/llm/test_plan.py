"""Which weights are quantized, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.config.llm import load_llm_config
from sparsebit.errors import SparsebitError
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.plan import Plan, embedding_and_head, why_not_packed
from tests.llm.models import DECODERS, TRANSPOSED_EXPERTS


def plan(**settings: Any) -> Plan:
    return Plan(WeightSource.open(DECODERS["llama"]()), load_llm_config({"METHOD": "rtn", **settings}))


def test_every_matrix_of_a_block_has_a_spec_or_a_reason() -> None:
    found = plan(
        W={"BIT": 4, "SPECIFIC": {"*.v_proj": {"BIT": 0}, "*.k_proj": {"BIT": 8}}}, IGNORE=["*.down_proj"]
    )
    block = "model.layers.0"
    inside = found.inside(block)
    assert str(inside("self_attn.q_proj.weight").code) == "int4_full"
    assert inside("self_attn.k_proj.weight").code.bits == 8
    assert inside("mlp.down_proj.weight") is None and inside("input_layernorm.weight") is None
    assert found.ignored[f"{block}.mlp.down_proj.weight"] == "IGNORE: *.down_proj"
    assert found.ignored[f"{block}.self_attn.v_proj.weight"] == "BIT: 0"
    assert found.outside() == []
    found.set_bits(f"{block}.self_attn.q_proj.weight", 2)
    assert str(inside("self_attn.q_proj.weight").code) == "int2_full"


def test_filters_biases_and_decays_are_not_matrices() -> None:
    mamba = nn.Module()
    mamba.conv1d = nn.Conv1d(8, 8, 4, groups=8)
    mamba.A_log = nn.Parameter(torch.zeros(8, 4))
    mamba.gate_up_proj_bias = nn.Parameter(torch.zeros(2, 8))  # of two experts
    mamba.time_mix_key = nn.Parameter(torch.zeros(1, 1, 8))  # RWKV's
    mamba.short_filter = nn.Parameter(torch.zeros(8, 1, 4))  # of a convolution that is written as a function
    mamba.in_proj = nn.Linear(8, 8)
    names = [name for name, one in mamba.named_parameters() if one.dim() > 1]
    assert [name for name in names if why_not_packed(mamba, name) is None] == ["in_proj.weight"]


def test_parameters_that_no_layer_packs_are_listed() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.linear = nn.Parameter(torch.randn(3, 2, 8, 4)), nn.Linear(8, 8)
            self.turn = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    model = nn.Sequential(Block(), Block())
    found = llm.quantize(model, None, {"METHOD": "rtn"}, progress=False)
    assert found.ignored["0.heads"] == "it has more than three axes"
    assert found.ignored["1.turn"] == "it does not hold real floating-point numbers"
    assert torch.equal(found.model.get_parameter("1.turn"), model[1].turn)


def test_what_is_not_a_matrix_stays_in_float() -> None:
    model = TRANSPOSED_EXPERTS["gpt_oss"]()
    found = llm.quantize(model, None, {"METHOD": "rtn", "W": {"GROUP_SIZE": 32}}, progress=False)
    name = "model.layers.0.mlp.experts.gate_up_proj_bias"
    assert found.ignored[name] == "a filter, a table, a bias or a decay"
    assert torch.equal(found.model.get_parameter(name), model.get_parameter(name))


def test_the_head_is_planned_with_the_embedding() -> None:
    names = embedding_and_head(DECODERS["llama"]())
    assert names == ["model.embed_tokens.weight", "lm_head.weight"]
    found = plan(HEAD={"BIT": 8})
    assert found.outside() == names
    assert [found.spec(name).code.bits for name in names] == [8, 8]


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SparsebitError, match=r"no_such"):
        plan(IGNORE=["*.no_such"])


@pytest.mark.parametrize("settings", [{"IGNORE": ["*"]}, {"W": {"BIT": 0}}])
def test_a_config_that_quantizes_nothing_is_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(
        SparsebitError, match=r"leaves every weight in float[\s\S]*set W.BIT, or remove patterns"
    ):
        plan(**settings)
    assert plan(**settings, HEAD={"BIT": 8}).outside()


def test_blocks_of_convolutions_are_not_for_it() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(2)))
    with pytest.raises(
        SparsebitError, match=r"multiply by no matrix of weights[\s\S]*with sparsebit.quantize"
    ):
        Plan(WeightSource.open(model), load_llm_config({"METHOD": "rtn"}))


def test_what_the_block_does_not_use_is_said(caplog: pytest.LogCaptureFixture) -> None:
    found = plan()
    found.note_unseen("model.layers.1", [])
    found.note_unseen("model.layers.2", [])
    found.announce()
    name = "model.layers.1.self_attn.q_proj.weight"
    assert found.ignored[name] == "the block was not seen to multiply by it as a matrix"
    assert len(caplog.records) == 1
    assert (
        "14 weights stay in float (the block was not seen to multiply by it as a matrix): model.layers.*.self_attn"
        in caplog.text
    )
