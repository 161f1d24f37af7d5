"""Values that come back as they were, from memory and from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.utils._pytree as pytree

from sparsebit.quantization.calibration.spill_list import SpillList


@pytest.mark.parametrize("limit", [0, 100, 2**20])
def test_values_come_back_equal_wherever_they_lie(limit: int) -> None:
    stored, base = SpillList(limit=limit), torch.arange(12.0)
    values = [
        {"x": base[:4], "same": base[:4], "view": base.view(3, 4).t(), "n": 3, "none": None},
        (torch.ones(2, dtype=torch.bool), [torch.tensor(1), "text"]),
        torch.empty(0, 3),
        5,
    ]
    for value in values:
        stored.append(value)
    assert len(stored) == len(values)
    for got, expected in zip(stored, values, strict=True):
        leaves, structure = pytree.tree_flatten(got)
        wanted, outline = pytree.tree_flatten(expected)
        assert structure == outline
        for one, other in zip(leaves, wanted, strict=True):
            assert torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other
    stored[1] = torch.full((3,), 7.0)
    assert torch.equal(stored[1], torch.full((3,), 7.0))


def files(stored: SpillList) -> list[Path]:
    return sorted(stored._folder.iterdir()) if stored._folder is not None else []


def test_memory_stays_bounded_and_the_rest_is_on_disk() -> None:
    stored = SpillList(limit=1000)
    for index in range(20):
        stored.append(torch.full((100,), float(index)))
    kept = sum(
        leaf.nbytes for leaves, _ in stored._items for leaf in leaves if isinstance(leaf, torch.Tensor)
    )
    assert kept <= 1000 and len(files(stored)) == 18
    assert [value[0].item() for value in stored] == list(range(20))
    for index in range(20):  # what is replaced is freed
        stored[index] = torch.full((100,), float(-index))
    assert len(files(stored)) == 18
    stored.pop()
    assert len(stored) == 19 and len(files(stored)) == 17


def test_the_folder_goes_with_the_object() -> None:
    stored = SpillList(limit=0)
    stored.append(torch.ones(3))
    folder = files(stored)[0].parent
    del stored
    assert not folder.exists()


def test_copies_do_not_follow_what_they_were_made_from() -> None:
    for limit in (0, 1000):
        x, stored = torch.ones(2), SpillList(limit=limit, copies=True)
        stored.append(x)
        x.zero_()
        assert torch.equal(stored[0], torch.ones(2))
