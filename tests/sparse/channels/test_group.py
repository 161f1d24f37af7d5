"""Groups as data."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import Group, Slice, find_groups, mask_tensors


def group(**options: object) -> Group:
    known = {"name": "a", "channels": 4, "blocks": None, "slices": (), "producers": ("a",), "nodes": ()}
    return Group(**{**known, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kept", "message"),
    [
        ({}, [True, False], "not one flag per channel"),
        ({}, [False] * 4, "a layer cannot be empty"),
        ({"frozen": "softmax at node 's'"}, [True, True, True, False], "cannot shrink"),
        ({"blocks": torch.tensor([0, 0, 1, 1])}, [True, True, True, False], "must lose the same number"),
    ],
)
def test_impossible_choices_are_refused(options: dict[str, object], kept: list[bool], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        group(**options).check(torch.tensor(kept))


def test_possible_choices_pass() -> None:
    group(frozen="why").check(torch.ones(4, dtype=torch.bool))
    group(blocks=torch.tensor([0, 0, 1, 1])).check(torch.tensor([True, False, False, True]))
    group(blocks=torch.tensor([0, 0, 0, 1])).check(torch.tensor([True, False, True, False]))


def test_a_slice_takes_and_clears_rows_of_a_grouped_weight() -> None:
    where = Slice("w", 1, torch.tensor([0, 1]), torch.tensor([3, 2]), "input", rows=(2, 4))
    weight = torch.arange(8).reshape(4, 2)
    assert where.take(weight).tolist() == [[4, 6], [5, 7]]
    mask = torch.ones(4, 2, dtype=torch.bool)
    where.clear(mask, torch.tensor([False, False, True, False]))
    assert mask.tolist() == [[True, True], [True, True], [True, False], [True, False]]


def test_groups_print_and_are_found_by_name() -> None:
    gm = capture(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (torch.randn(2, 4),))
    groups = find_groups(gm)
    assert str(groups) == "0: 6 channels\n2: 3 channels; cannot shrink: _2 is an output of the model"
    assert groups.by_name("0").producers == ("0",)
    assert [group.name for group in groups.free] == ["0"]
    with pytest.raises(GraphError, match="no channel group is named 'x'"):
        groups.by_name("x")
    masks = mask_tensors(groups, {"0": torch.arange(6) > 0})
    assert masks["0.weight"].sum() == 20 and masks["2.weight"].sum() == 15 and masks["0.bias"].sum() == 5
