"""The head is solved on what reaches it; the embedding is rounded; one tensor for both is solved for both."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit import llm
from sparsebit.config.llm import load_llm_config
from sparsebit.llm.blocks.route import find_route
from sparsebit.llm.blocks.streams import Stream, Streams
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import output_loss
from sparsebit.llm.plan import Plan
from sparsebit.llm.solve_outside import measure_head, solve_outside
from tests.llm.models import DECODERS, tokens

CONFIG = {"W": {"BIT": 0, "SPARSITY": 0.5}, "HEAD": {"BIT": 3, "GROUP_SIZE": 32}, "METHOD": "gptq"}


def prepared(tied: bool, name: str = "llama") -> tuple[WeightSource, Plan, Streams, torch.Tensor]:
    """A model whose blocks are left out: what reaches the head is the norm of what the first block was given."""
    model: Any = DECODERS[name]()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    source = WeightSource.open(model)
    ids = tokens(128).view(4, 32)
    route = find_route(source.model, source.blocks, source.lend, ids[:1])
    data = Streams(Stream(source.model, route, ids.split(2)), source.lend, follow=True)
    hidden = list(data.own.hidden)
    assert data.floats is not None
    for stream, factor in ((data.own, 1), (data.floats, 2)):
        for _ in source.blocks:
            stream.advance([[factor * one for one in hidden]])
    with torch.no_grad():
        reaching = model.model.norm(torch.cat(hidden)).reshape(-1, hidden[0].shape[-1])
    return source, Plan(source, load_llm_config(CONFIG)), data, reaching


def test_statistics_are_those_of_what_reaches_the_head() -> None:
    source, _, data, reaching = prepared(tied=False)
    found = measure_head(source, "lm_head.weight", data)
    assert found is not None and found.tokens == 128
    assert torch.allclose(found.mean_gram(), reaching.T @ reaching / 128, atol=1e-4)
    # The norm gives nearly the same for twice the input.
    assert found.shift is not None and found.shift.abs().max() < 0.005 * found.gram.max()
    assert measure_head(source, "model.embed_tokens.weight", data) is None


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_loses_less_than_by_rounding(tied: bool) -> None:
    source, plan, data, reaching = prepared(tied)
    embedding, head = solve_outside(source, plan, Gptq(), data)
    weight = source.model.get_parameter("lm_head.weight").data
    spec, gram = plan.spec("lm_head.weight"), reaching.T @ reaching / 128
    assert spec is not None and head.held is not None and embedding.held is not None
    nearest = output_loss(weight, Rtn(steps=24).solve(weight, None, spec).weight, gram)
    assert output_loss(weight, head.held.numbers(), gram) < 0.9 * nearest
    assert head.name == "lm_head.weight" and head.tokens == 128 and not head.remark
    assert (embedding.held is head.held) == tied
    if not tied:
        assert embedding.remark == "rounded to nearest" and not embedding.tokens


def test_without_data_both_are_rounded() -> None:
    source, plan, _, _ = prepared(tied=True)
    made = solve_outside(source, plan, Rtn(), None)
    assert [one.remark for one in made] == ["rounded to nearest"] * 2


def test_a_quantized_model_has_its_head_solved() -> None:
    config = {**CONFIG, "CALIBRATION": {"SAMPLES": 4, "LENGTH": 32}}
    result = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    (head,) = (one for one in result.records if one.name == "lm_head.weight")
    assert head.tokens == 128 and head.code == "int3_full"


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_is_pruned_stays_in_float(tied: bool) -> None:
    model: Any = DECODERS["llama"]()
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    before = model.lm_head.weight.clone()
    config = {"W": {"BIT": 4, "SPARSITY": 0.5}, "HEAD": {"BIT": 0, "SPARSITY": 0.5}, "METHOD": "sparsegpt"}
    config |= {"CALIBRATION": {"SAMPLES": 2, "LENGTH": 32}}
    result = llm.quantize(model, tokens(), config, progress=False)
    made: Any = result.model
    for layer in (made.lm_head, made.model.embed_tokens):
        assert float((layer.weight == 0).float().mean()) == pytest.approx(0.5, abs=0.02)
    assert (made.lm_head.weight is made.model.embed_tokens.weight) == tied
    assert torch.equal(model.lm_head.weight, before)  # the user's
    records = {record.name: record for record in result.records}
    assert records["lm_head.weight"].remark == "50% of it is zero" and records["lm_head.weight"].tokens == 64
    if not tied:
        assert records["model.embed_tokens.weight"].remark == "pruned by magnitude; 50% of it is zero"
