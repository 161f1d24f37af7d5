"""The result of quantizing: an ordinary module with packed layers, and what each of them takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.language_model import install
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLinear
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.packed import PackedTensor
from tests.llm.models import DECODERS, tokens


def test_bits_count_scales_and_zero_points() -> None:
    config = {"W": {"BIT": 4, "SCHEME": "affine", "GROUP_SIZE": 32}, "METHOD": "rtn"}
    model = llm.quantize(DECODERS["llama"](), None, config, progress=False)
    assert model.bits == pytest.approx(4 + (16 + 4) / 32)
    assert {record.bits for record in model.records} == {model.bits}
    float_bytes = sum(t.nbytes for t in DECODERS["llama"]().state_dict().values())
    assert model.nbytes < 0.5 * float_bytes
    assert (
        repr(model)
        == "LanguageModel(LlamaForCausalLM: 21 weights in 4.62 bits each, including scales; 0.1 MB)"
    )
    found = model.evaluate(tokens(128), length=32)
    assert found.tokens == 128 and found.divergence is None


def test_packed_layers_take_the_place_of_linear_layers_and_embeddings() -> None:
    model = llm.quantize(DECODERS["gpt2"](), None, {"METHOD": "rtn", "HEAD": {"BIT": 8}}, progress=False)
    name = "transformer.h.0.attn.c_attn.weight"  # a Conv1D, which holds its weight as [in, out]
    assert isinstance(model.model.get_submodule("transformer.h.0.attn.c_attn"), PackedLinear)
    assert isinstance(model.model.get_input_embeddings(), PackedEmbedding)
    other = DECODERS["gpt2"]()
    install(other, {name: model.weights[name]}, model.transposed)
    layer = other.get_submodule("transformer.h.0.attn.c_attn")
    assert torch.equal(layer.weight, model.weights[name].numbers()) and layer.bias is not None


def test_falcons_own_linear_layers_are_packed() -> None:
    model = llm.quantize(DECODERS["falcon"](), None, {"METHOD": "rtn"}, progress=False).model
    packed = [one for one in model.modules() if isinstance(one, PackedLinear)]
    assert len(packed) == 12


@pytest.mark.parametrize("indices", [(0,), (0, 1, 2)])
def test_a_stack_needs_exactly_its_experts(indices: tuple[int, ...]) -> None:
    grid = Grid(torch.ones(4), torch.zeros(4), CodeType("int", 4), Layout(kind="channel"))
    held = PackedTensor.of(torch.randn(4, 4), grid)
    model = nn.ParameterDict({"down": nn.Parameter(torch.zeros(2, 4, 4))})
    with pytest.raises(
        SparsebitError, match=r"expert '[12]' of 'down' is missing, or the model does not have it"
    ):
        install(model, {f"down[{index}]": held for index in indices}, ())


def test_a_packed_embedding_keeps_the_factor_of_the_one_it_replaces() -> None:
    model = DECODERS["gemma2"]()  # it multiplies its embeddings by the root of their width
    small = llm.quantize(model, None, {"METHOD": "rtn", "HEAD": {"BIT": 8}}, progress=False)
    embedding = small.model.get_input_embeddings()
    assert isinstance(embedding, PackedEmbedding) and embedding.factor == 8.0
    ids = tokens(4)
    rows = small.weights["model.embed_tokens.weight"].numbers()[ids]
    assert torch.equal(embedding(ids), rows * 8) and torch.allclose(
        embedding(ids), model.get_input_embeddings()(ids), atol=0.01
    )


def test_a_linear_layer_that_computes_more_keeps_its_code() -> None:
    class Router(nn.Linear):
        def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
            scores = super().forward(input)
            return scores.sigmoid(), scores

    model = nn.ModuleDict({"router": Router(8, 4)})
    grid = Grid(torch.full((4,), 0.1), torch.zeros(4), CodeType("int", 4), Layout(kind="channel"))
    held = PackedTensor.of(model["router"].weight.detach(), grid)
    install(model, {"router.weight": held}, ())
    scores, logits = model["router"](torch.ones(2, 8))
    assert torch.equal(model["router"].weight, held.numbers()) and torch.equal(scores, logits.sigmoid())
