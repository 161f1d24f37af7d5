"""What of a batch is the model's input."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch

from sparsebit.batches import as_call, as_fed, crop_like, to_device
from sparsebit.errors import SparsebitError

X, Y = torch.zeros(1), torch.ones(1)


@pytest.mark.parametrize(
    ("batch", "args", "kwargs", "expected"),
    [
        (X, (X,), {}, ((X,), {})),
        ((X, Y), (X,), {}, ((X,), {})),
        ([X, Y], (X, X), {}, ((X, Y), {})),
        ((X, Y), (), {}, ((X,), {})),
        ({"a": X, "labels": Y}, (), {"a": X}, ((), {"a": X})),
        (UserDict({"a": X, "b": Y}), (), {}, ((), {"a": X, "b": Y})),
        ({"a": X}, ({"a": X},), {}, (({"a": X},), {})),
        ({"a": X, "b": Y}, (X,), {"b": Y}, ((), {"a": X, "b": Y})),
    ],
)
def test_inputs_are_told_by_the_example(batch: Any, args: Any, kwargs: Any, expected: Any) -> None:
    assert as_call(batch, args, kwargs) == expected


@pytest.mark.parametrize(
    ("batch", "args", "kwargs", "words"),
    [
        ((X,), (X, X), {}, "1 items, the model takes 2"),
        ({"b": X}, (), {"a": X}, "no 'a'"),
        ((X, Y), (X,), {"b": Y}, "has to name them"),
        ("text", (X,), {}, "cannot tell"),
        (None, (X,), {}, "cannot tell"),
    ],
)
def test_what_is_unclear_is_an_error_that_names_feed(batch: Any, args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(SparsebitError, match=rf"{words}(.|\n)*feed="):
        as_call(batch, args, kwargs)


def test_what_feed_returns_is_taken_as_it_is() -> None:
    assert as_fed(X) == ((X,), {}) and as_fed([X, Y]) == ((X, Y), {}) and as_fed({"a": X}) == ((), {"a": X})
    with pytest.raises(SparsebitError, match="NoneType"):
        as_fed(None)


def test_to_device_reaches_every_tensor() -> None:
    moved = to_device({"a": [X, (X, 3)], "b": None}, torch.device("meta"))
    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta and moved["a"][1][1] == 3


def test_recorded_samples_are_cut_to_the_size_of_an_example() -> None:
    call = ((torch.arange(12.0).view(4, 3),), {"flag": True})
    cut = crop_like(call, torch.zeros(2, 3))
    assert cut is not None
    assert torch.equal(cut[0][0], call[0][0][:2]) and cut[1] == {"flag": True}


@pytest.mark.parametrize(
    "dummy", [torch.zeros(2, 4), torch.zeros(5, 3), torch.zeros(2, 3).long(), torch.tensor(1.0), ()]
)
def test_samples_of_another_kind_are_not_offered(dummy: object) -> None:
    assert crop_like(((torch.zeros(4, 3),), {}), dummy) is None
