"""The repeated blocks of a model, found from its tree."""

from __future__ import annotations

import pytest
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.find import find_stack, find_stacks
from tests.llm.models import DECODERS, ROUTES


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


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("bart", ["model.encoder.layers", "model.decoder.layers"]),
        ("xlm", ["transformer.attentions", "transformer.ffns"]),
        ("albert", ["albert.encoder.albert_layer_groups"]),
        ("skips", ["blocks"]),
    ],
)
def test_every_list_of_blocks_is_found(name: str, paths: list[str]) -> None:
    assert [stack.path for stack in find_stacks(ROUTES[name]())] == paths


def test_lists_of_output_layers_embeddings_and_convolutions_are_no_blocks() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(*(nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU()) for _ in range(2)))
            self.tables = nn.ModuleList(nn.Embedding(4, 4) for _ in range(3))
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3))
            self.beside = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    assert [stack.path for stack in find_stacks(Model())] == ["layers", "beside"]


def test_blocks_in_a_dict_differ_by_their_numbers() -> None:
    def layers() -> nn.ModuleDict:
        return nn.ModuleDict({f"layer_{index}": nn.Sequential(nn.Linear(4, 4)) for index in (1, 2)})

    assert find_stack(nn.ModuleDict({"h": layers()})).names == ("h.layer_1", "h.layer_2")
    pair = nn.ModuleDict({"encoder": layers(), "decoder": layers()})
    assert [stack.path for stack in find_stacks(pair)] == ["encoder", "decoder"]


def test_a_block_that_is_listed_twice_is_one() -> None:
    shared = nn.Linear(4, 4)
    assert find_stack(nn.ModuleDict({"a": nn.ModuleList([shared] * 3)})).names == ("a.0",)
