"""Packed matrices as tensors and plain data: the way back, and parts that do not belong together."""

from __future__ import annotations

import json

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.packed.stored import from_stored, to_stored
from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.numerics.packed import PackedTensor
from sparsebit.storage import Fields


def packed(order: torch.Tensor | None) -> PackedTensor:
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    rows = (weight if order is None else weight[:, order]).reshape(-1, 16)
    layout = Layout(kind="group", axes=(0,), input_axis=1, group_size=16)
    grid = choose_grid(rows.amin(1), rows.amax(1), CodeType("uint", 3), layout, order=order)
    return PackedTensor.of(weight, grid)


@pytest.mark.parametrize("order", [None, torch.arange(63, -1, -1)])
def test_matrices_come_back_in_their_order(order: torch.Tensor | None) -> None:
    weights = {"model.b": packed(order), "lm_head": packed(None)}
    tensors, described = to_stored(weights)
    found = from_stored(tensors, Fields.each(json.loads(json.dumps(described)), "a.json"))
    assert list(found) == list(weights)
    for name, held in weights.items():
        assert torch.equal(found[name].numbers(), held.numbers())
        assert found[name].nbytes == held.nbytes == 4 * 64 * 3 // 8 + 16 * 4 + 16 * 3 // 8


def test_parts_that_do_not_fit_are_refused() -> None:
    tensors, described = to_stored({"a": packed(None)})
    with pytest.raises(SparsebitError, match="not a packed tensor"):
        from_stored({}, Fields.each(described, "a.json"))
    with pytest.raises(SparsebitError, match="bits does not fit"):
        from_stored({**tensors, "a:bits": tensors["a:bits"][:2]}, Fields.each(described, "a.json"))
    vector = PackedTensor.of(torch.ones(4), choose_grid(torch.zeros(1), torch.ones(1), CodeType("uint", 3)))
    tensors, described = to_stored({"a": vector})
    with pytest.raises(SparsebitError, match="two sizes"):
        from_stored(tensors, Fields.each(described, "a.json"))
