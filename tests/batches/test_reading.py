"""What a loader may be, and how it is read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sparsebit.batches import (
    MOST_BATCHES,
    Call,
    DataError,
    explained,
    peek,
    read_batches,
)

X, Y = torch.zeros(1), torch.ones(1)


def test_a_loader_may_be_a_tensor_a_dict_or_anything_that_gives_batches() -> None:
    assert list(read_batches(X)) == [X] and list(read_batches({"a": X})) == [{"a": X}]
    assert list(read_batches(iter([X, Y]), 1)) == [X]


@pytest.mark.parametrize("loader", [None, 3, "folder", nn.Identity()])
def test_what_cannot_be_read_is_named(loader: Any) -> None:
    with pytest.raises(DataError, match=f"{type(loader).__name__} cannot be read as data"):
        list(read_batches(loader))


def test_no_batches_are_an_error() -> None:
    used = iter([X])
    list(used)
    for empty in ([], used):
        with pytest.raises(DataError, match=r"the loader gave no batches(.|\n)*read only once"):
            list(read_batches(empty))
    with pytest.raises(DataError, match="batches=0"):
        list(read_batches([X], 0))


def test_endless_loaders_stop_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    assert sum(1 for _ in read_batches(itertools.repeat(X))) == MOST_BATCHES
    assert f"stopped after {MOST_BATCHES} batches" in caplog.text
    caplog.clear()
    assert sum(1 for _ in read_batches(iter([X] * MOST_BATCHES))) == MOST_BATCHES
    assert sum(1 for _ in read_batches([X] * (MOST_BATCHES + 1))) == MOST_BATCHES + 1  # it has a length
    assert caplog.text == ""


def test_no_batch_is_made_that_is_not_used() -> None:
    made = []
    list(read_batches((made.append(i) or X for i in range(9)), 2))  # type: ignore[func-returns-value]
    assert made == [0, 1]


def test_looking_at_the_first_batch_loses_nothing() -> None:
    first, again = peek(iter([X, Y]))
    assert first is X and list(again) == [X, Y]
    batches = [X, Y]
    assert peek(batches) == (X, batches)
    with pytest.raises(DataError, match="gave no batches"):
        peek([])


def test_a_batch_the_model_cannot_run_is_named() -> None:
    layer, call = nn.Linear(3, 2), Call((torch.zeros(2, 4),))
    words = r"cannot run batch 7 (.|\n)*float32\[1, 3\](.|\n)*float32\[2, 4\]"
    with pytest.raises(DataError, match=words), explained(7, call, Call((torch.zeros(1, 3),))):
        layer(*call.args)


@pytest.mark.parametrize("wrong", ["2", 2.0, torch.zeros(3)])
def test_a_number_of_batches_is_an_integer(wrong: Any) -> None:
    with pytest.raises(DataError, match="at least one batch is needed; batches= is their number"):
        list(read_batches([X], wrong))


def test_a_dataset_is_not_a_loader() -> None:
    with pytest.raises(DataError, match=r"gives single samples(.|\n)*DataLoader\(dataset, batch_size=32\)"):
        list(read_batches(TensorDataset(torch.zeros(4, 2))))


def test_a_generator_that_is_used_up_is_named() -> None:
    with pytest.raises(DataError, match=r"gave no batches(.|\n)*generator"):
        peek(x for x in ())
