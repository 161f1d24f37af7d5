"""Packed layers in a model: generation, half precision, and grids that no conversion of the model changes."""

from __future__ import annotations

import pytest
import torch

from sparsebit import llm
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLinear
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.packed import PackedTensor
from tests.llm.models import sharp, tokens


def test_a_model_in_bfloat16_generates_with_the_same_grids() -> None:
    config = {"W": {"BIT": 4}, "HEAD": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn"}
    small = llm.quantize(sharp("llama"), None, config, progress=False)
    ids = tokens(8)[None]
    with torch.no_grad():
        wanted = small(ids).logits
    made = small.model.bfloat16()
    layer = made.get_submodule("model.layers.0.mlp.up_proj")
    embedding = made.get_submodule("model.embed_tokens")
    assert isinstance(layer, PackedLinear) and isinstance(embedding, PackedEmbedding)
    held = small.weights["model.layers.0.mlp.up_proj.weight"]
    assert layer.scale.dtype == torch.float16 and torch.equal(
        layer.held.numbers(torch.float32), held.numbers()
    )
    assert embedding(ids).dtype == layer.weight.dtype == torch.bfloat16
    with torch.no_grad():
        found = made(ids).logits
    assert found.dtype == torch.bfloat16 and (found.float() - wanted).norm() < 0.1 * wanted.norm()
    generated = made.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert generated.shape == (1, 12)


def test_a_product_by_a_kernel_does_not_put_the_packed_weight_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = Grid(torch.full((32,), 0.1), torch.zeros(32), CodeType("int", 4), Layout(kind="channel"))
    layer = PackedLinear(PackedTensor.of(torch.randn(32, 64), grid), bias=None).bfloat16()
    x = torch.randn(2, 64).bfloat16()
    with torch.no_grad():
        first = layer(x)  # makes what the kernel reads

        def put_together(_: PackedLinear) -> PackedTensor:
            raise AssertionError("it takes longer than the product")

        monkeypatch.setattr(PackedLinear, "held", property(put_together))
        assert layer(x).equal(first)
