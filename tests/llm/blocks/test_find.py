"""The repeated blocks of a model, found from its tree."""

from __future__ import annotations

import pytest
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.find import find_stack
from tests.llm.models import DECODERS


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("llama", "model.layers"),
        ("gpt2", "transformer.h"),
        ("opt", "model.decoder.layers"),
        ("mixtral", "model.layers"),
    ],
)
def test_the_list_of_decoder_layers_is_found(name: str, path: str) -> None:
    stack = find_stack(DECODERS[name]())
    assert stack.path == path and stack.names == tuple(f"{path}.{index}" for index in range(3))


def test_blocks_of_two_classes_with_a_common_base_are_blocks() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    class Attention(Layer): ...

    class Recurrent(Layer): ...

    model = nn.ModuleDict({"layers": nn.ModuleList([Recurrent(), Attention(), Recurrent()])})
    assert find_stack(model).names == ("layers.0", "layers.1", "layers.2")
    with pytest.raises(SparsebitError, match="has no list of repeated blocks"):
        find_stack(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(SparsebitError, match="Linear has no list of repeated blocks"):
        find_stack(nn.Linear(2, 2))
