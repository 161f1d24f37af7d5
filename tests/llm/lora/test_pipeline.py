"""Stages of blocks, one behind the other, are the model: loss and gradients; what cannot be divided is said."""

from __future__ import annotations

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.lora import add_lora
from sparsebit.llm.lora.pipeline import BlockPipeline, BlockStage, divide_blocks
from sparsebit.llm.lora.processes import adapters, next_token_loss
from tests.llm.models import sharp, tokens

LAYERS = {"llama": ("*_proj",), "gpt2": ("*.c_*",), "falcon": ("*",)}


def with_adapters(name: str) -> torch.nn.Module:
    made = llm.quantize(sharp(name), None, {"W": {"BIT": 4}, "METHOD": "rtn"}, progress=False)
    torch.manual_seed(0)
    add_lora(made, rank=2, layers=LAYERS[name])
    for parameter in adapters(made.model):
        torch.nn.init.normal_(parameter, std=0.1)
    return made.model


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_stages_give_the_loss_and_the_gradients_of_the_model(name: str) -> None:
    model, ids = with_adapters(name), tokens(48).view(3, 16)
    wanted = next_token_loss(model(ids).logits, ids)
    wanted.backward()
    gradients = [parameter.grad.clone() for parameter in adapters(model)]
    model.zero_grad()
    stack = find_stack(model)
    parts = [BlockStage(model, stack, part) for part in divide_blocks(len(stack.names), 3)]
    assert [len(part.blocks) for part in parts] == [1, 1, 1]
    found = next_token_loss(parts[2](parts[1](parts[0](ids), ids), ids), ids)
    found.backward()
    assert torch.allclose(found, wanted, rtol=1e-5)
    for parameter, gradient in zip(adapters(model), gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-5)
    assert all(one is kept for one, kept in zip(find_stack(model).modules, stack.modules, strict=True))


def test_blocks_are_divided_evenly_or_not_at_all() -> None:
    assert [len(part) for part in divide_blocks(30, 4)] == [8, 7, 8, 7]
    with pytest.raises(SparsebitError, match="3 blocks cannot be divided among 4 processes"):
        divide_blocks(3, 4)
    made = llm.quantize(sharp("llama"), None, {"W": {"BIT": 4}, "METHOD": "rtn"}, progress=False)
    add_lora(made, layers=("model.layers.0.*_proj",))
    with pytest.raises(SparsebitError, match="adapters in the blocks of every process"):
        BlockPipeline(made.model, 0, 2, batch=2, length=8)
