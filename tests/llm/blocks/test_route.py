"""The route of a model through its blocks, with and without their results."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.find import find_stacks
from sparsebit.llm.blocks.route import Route, find_route
from tests.llm.models import DECODERS, ROUTES, VOCABULARY, Residual, tokens


def route(model: nn.Module) -> Route:
    names = [name for stack in find_stacks(model) for name in stack.names]
    return find_route(model, names, lambda name: contextlib.nullcontext(model), tokens(16)[None])


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_blocks_of_decoders_follow_one_another(name: str) -> None:
    found = route(DECODERS[name]())
    assert found.direct and [visit.until for visit in found.visits] == [{}, {}, {0: 3}]


@pytest.mark.parametrize(
    ("name", "blocks", "starts"),
    [
        ("plain", [0, 1], [0, 1]),
        ("albert", [0, 0, 1, 1], [0, 0, 0, 0]),
        ("xlm", [0, 2, 1, 3], [0, 1, 2, 3]),
        ("bart", [0, 1, 2, 3], [0, 0, 2, 2]),
        ("t5", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("looped", [0, 1, 0, 1, 0, 1, 0], [0, 0, 2, 2, 4, 4, 6]),
        ("skips", [0, 1, 2, 3, 4, 5], [0, 0, 2, 2, 4, 5]),
    ],
)
def test_runs_of_blocks_end_where_the_model_computes(name: str, blocks: list[int], starts: list[int]) -> None:
    found = route(ROUTES[name]())
    assert [visit.block for visit in found.visits] == blocks
    assert [visit.start for visit in found.visits] == starts
    assert not found.direct


def test_what_is_read_later_is_known() -> None:
    found = route(ROUTES["skips"]())
    # Block 4 is joined to the result of block 1, block 5 to that of block 0, and the head reads all from block 2 on.
    assert [visit.until.get(0) for visit in found.visits] == [5, 4, 6, 6, 6, 6]
    encoder = route(ROUTES["bart"]()).visits
    # The model also returns what its encoder gave.
    assert [visit.until for visit in encoder] == [{}, {0: 4}, {}, {0: 4}]


class Deciding(Residual):
    """Where a number from the first block may decide anything, what follows depends on it."""

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.blocks[0](self.embed(input_ids))
        factor = 2.0 if hidden.mean().item() > 1e9 else 1.0
        out: Tensor = self.head(self.blocks[1](hidden)) * factor
        return out


class Mapped(Residual):
    """Computes between its blocks inside ``torch.vmap``, as some masks are made."""

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = torch.vmap(lambda one: one * 2)(block(hidden))
        out: Tensor = self.head(hidden)
        return out


class Writing(Residual):
    """A result that the model writes into a tensor of its own."""

    def forward(self, input_ids: Tensor) -> Tensor:
        first = self.blocks[0](self.embed(input_ids))
        kept = torch.zeros_like(first)
        kept[:, 1:] = first[:, :-1]
        out: Tensor = self.head(self.blocks[1](first) + kept)
        return out


@pytest.mark.parametrize(("kind", "starts"), [(Deciding, [0, 1]), (Writing, [0, 0])])
def test_numbers_and_writes_in_place_are_followed(kind: Any, starts: list[int]) -> None:
    found = route(kind().eval())
    assert [visit.start for visit in found.visits] == starts
    assert found.visits[0].until == {0: 2} and not found.direct


def test_what_is_computed_inside_vmap_is_followed() -> None:
    found = route(Mapped().eval())
    assert [visit.start for visit in found.visits] == [0, 1] and not found.direct


def test_a_model_that_calls_no_block_is_refused() -> None:
    class Idle(Residual):
        def forward(self, input_ids: Tensor) -> Tensor:
            out: Tensor = self.head(self.embed(input_ids))
            return out

    with pytest.raises(SparsebitError, match="Idle called none of its 2 blocks"):
        route(Idle())


def test_blocks_that_change_the_shape_begin_new_runs() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 8)
            self.blocks = nn.ModuleList(nn.Linear(8 * 2**index, 16 * 2**index) for index in range(3))

        def forward(self, input_ids: Tensor) -> Tensor:
            hidden: Tensor = self.embed(input_ids)
            for block in self.blocks:
                hidden = block(hidden)
            return hidden

    assert [visit.start for visit in route(Growing()).visits] == [0, 1, 2]
