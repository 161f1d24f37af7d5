"""Which axes may have any size, and what is tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export import ExportError
from sparsebit.export.translate.axes import axis_choices, fixed_axes, named_axes, resized

IDS, MASK = torch.zeros(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long)


def test_the_freest_choice_is_tried_first() -> None:
    choices = axis_choices("batch", ["ids", "mask"], [], [IDS, MASK])
    both, batch = {0: "batch", 1: "sequence"}, {0: "batch"}
    assert choices == ({"ids": both, "mask": both}, {"ids": batch, "mask": batch}, {})
    assert axis_choices("batch", ["image"], [], [torch.zeros(2, 3, 8, 8)]) == ({"image": {0: "batch"}}, {})
    assert axis_choices({"ids": [1]}, ["ids"], [], [IDS]) == ({"ids": {1: "ids_dim_1"}},)
    assert axis_choices(None, ["ids"], [], [IDS]) == ({},)


def test_axes_of_different_lengths_have_different_names() -> None:
    choices = axis_choices("batch", ["ids", "mask", "answer"], [], [IDS, MASK, IDS[:, :6]])
    both = {0: "batch", 1: "sequence"}
    assert choices[0] == {"ids": both, "mask": both, "answer": {0: "batch", 1: "sequence_2"}}
    made = resized([IDS, IDS[:, :6]], ["ids", "answer"], choices[0])
    assert made is not None and [tuple(x.shape) for x in made] == [(4, 4), (4, 3)]
    with pytest.raises(ExportError, match=r"'length' names axes of different lengths[\s\S]*8, as in another"):
        named_axes({"ids": {1: "length"}, "answer": {1: "length"}}, ["ids", "answer"], [], [IDS, IDS[:, :6]])


def test_a_sequence_is_halved_and_a_batch_doubled() -> None:
    made = resized([IDS, torch.zeros(3)], ["ids", "table"], {"ids": {0: "batch", 1: "sequence"}})
    assert made is not None and [tuple(x.shape) for x in made] == [(4, 4), (3,)]
    assert resized([IDS], ["ids"], {}) is None


def test_an_axis_that_was_proven_fixed_is_not_tried_and_cannot_be_asked_for() -> None:
    fixed = {"ids": {1: "len(x) became a number"}}
    assert axis_choices("batch", ["ids"], [], [IDS], fixed) == ({"ids": {0: "batch"}}, {})
    with pytest.raises(
        ExportError, match=r"axis 1 of 'ids' cannot be dynamic: len\(x\)[\s\S]*leave axis 1 out"
    ):
        axis_choices({"ids": [0, 1]}, ["ids"], [], [IDS], fixed)


class TwoRows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(2.0)[:, None]


def test_the_capture_says_what_is_fixed() -> None:
    assert set(fixed_axes(capture(TwoRows(), torch.zeros(2, 4)), ["x"])["x"]) == {0}


def test_axes_belong_to_names() -> None:
    with pytest.raises(ExportError, match=r"dynamic_axes names inputs and outputs(.|\n)*\{'input': \[0\]\}"):
        named_axes([0], ["input"], [], [torch.zeros(2)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "axes", [0, "batch", None, [0.5], {"0": "batch"}, {0: 5}, {0: "n", "1": "m"}, {0: torch.export.Dim("n")}]
)
def test_axes_are_numbers_with_names(axes: Any) -> None:
    with pytest.raises(ExportError, match=r"axes of 'x' are not numbers with names\n.*\{0: 'batch'\}"):
        named_axes({"x": axes}, ["x"], [], [torch.zeros(2, 3)])
    assert named_axes({"x": []}, ["x"], [], [torch.zeros(2, 3)]) == {}
