"""The one rule for data: what of a batch is the model's input, and what a loader may be."""

from __future__ import annotations

import itertools
import logging
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.batches import (
    MOST_BATCHES,
    Call,
    DataError,
    ModelInputs,
    as_call,
    crop_like,
    device_of,
    example_call,
    explained,
    few,
    peek,
    read_batches,
    to_device,
)

X, Y = torch.zeros(1), torch.ones(1)


def one(x: Tensor) -> Tensor:
    return x


def two(image: Tensor, meta: Tensor) -> Tensor:
    return image + meta


def optional(ids: Tensor, mask: Tensor | None = None) -> Tensor:
    return ids


@pytest.mark.parametrize(
    ("model", "example", "batch", "expected"),
    [
        (None, (X,), X, ((X,), {})),
        (None, (X,), (X, Y), ((X,), {})),
        (None, (X, X), [X, Y], ((X, Y), {})),
        (None, (X, X), ((X, Y), Y), ((X, Y), {})),
        (None, ({"a": X},), {"a": X}, (({"a": X},), {})),
        (None, ([X, X],), ([X, Y], Y), (([X, Y],), {})),
        (None, {"a": X}, {"a": X, "labels": Y}, ((), {"a": X})),
        (None, {"a": X}, (X, Y), ((), {"a": X})),
        (None, {"a": X}, ({"a": X}, Y), ((), {"a": X})),
        (one, (X,), {"x": X, "labels": Y}, ((), {"x": X})),
        (optional, (X,), {"ids": X, "mask": X, "labels": Y}, ((), {"ids": X})),
        (optional, (X, X), {"mask": Y, "ids": X}, ((), {"mask": Y, "ids": X})),
        # without an example the signature tells
        (one, None, X, ((X,), {})),
        (one, None, (X, Y), ((X,), {})),
        (one, None, (X, Y, Y), ((X,), {})),
        (two, None, (X, Y), ((X, Y), {})),
        (two, None, ((X, Y), Y), ((X, Y), {})),
        (optional, None, (X, Y), ((X,), {})),
        (optional, None, (X, X, Y), ((X, X), {})),
        (optional, None, {"ids": X, "labels": Y}, ((), {"ids": X})),
        (None, None, UserDict({"a": X, "b": Y}), ((), {"a": X, "b": Y})),
        (None, None, Call((X,), {"b": Y}), ((X,), {"b": Y})),
    ],
)
def test_inputs_are_told_by_the_example_or_the_signature(
    model: Any, example: Any, batch: Any, expected: Any
) -> None:
    found = ModelInputs(model, example).batch(batch)
    assert (found.args, found.kwargs) == expected


@pytest.mark.parametrize(
    ("model", "example", "given", "expected"),
    [
        (None, (X,), X, ((X,), {})),
        (None, (X,), (X, Y), ((X,), {})),
        (None, (X, X), ((X, X), Y), ((X, X), {})),
        (None, {"a": X}, {"a": X, "labels": Y}, ((), {"a": X})),
        (None, {"a": X}, ({"a": X}, Y), ((), {"a": X})),
        (one, (X,), {"x": X, "labels": Y}, ((), {"x": X})),
        # labels that the model was captured with, arguments by position and by name, and a plain module
        (None, {"a": X, "labels": Y}, {"a": X, "labels": Y}, ((), {"a": X, "labels": Y})),
        (two, {"image": X, "meta": X}, (X, Y), ((X, Y), {})),
        (None, (X,), ((X,), {"b": Y}), ((X,), {"b": Y})),
        (optional, None, (X, Y), ((X, Y), {})),
        (None, None, {"a": X, "labels": Y}, ((), {"a": X, "labels": Y})),
    ],
)
def test_an_example_may_be_a_batch_with_labels(model: Any, example: Any, given: Any, expected: Any) -> None:
    assert ModelInputs(model, example).call(given) == expected


def test_the_rest_goes_to_a_loss_and_its_last_item_is_the_label() -> None:
    inputs, ids = ModelInputs(one, X), torch.arange(3)
    assert inputs.batch((X, ids, Y)).rest == (ids, Y) and inputs.batch((X, ids, Y)).labels is Y
    named = {"x": X, "targets": Y}
    assert inputs.batch(named).rest == (named,) and inputs.batch(named).labels is Y
    assert inputs.batch(X).labels is None


def test_labels_stay_out_of_the_call_when_they_are_measured_with() -> None:
    batch = {"ids": X, "labels": Y}
    assert ModelInputs().labelled(batch).kwargs == {"ids": X}
    assert ModelInputs(None, batch).labelled(batch).kwargs == batch  # captured with them
    with pytest.raises(DataError, match="no labels to measure with"):
        ModelInputs().labelled(X)


@pytest.mark.parametrize(
    ("model", "example", "batch", "words"),
    [
        (None, (X, X), (X,), "takes 2 inputs, and the batch has 1"),
        (two, None, X, r"takes 2 inputs \(image, meta\), and the batch has 1"),
        (None, {"a": X}, {"b": X}, "no 'a'"),
        (one, (X,), {"image": X}, "no 'x'(.|\n)*a dict with image"),
        (None, {"a": X, "b": X}, (X, Y), "has to name its inputs(.|\n)*a dict with a, b"),
        (None, (X,), "text", "cannot tell"),
        (None, (X,), None, "cannot tell"),
        (None, (X,), (), "an empty tuple"),
    ],
)
def test_what_is_unclear_is_an_error_that_names_feed(
    model: Any, example: Any, batch: Any, words: str
) -> None:
    with pytest.raises(DataError, match=rf"{words}(.|\n)*feed="):
        ModelInputs(model, example).batch(batch)


def test_what_feed_returns_is_taken_as_it_is() -> None:
    inputs = ModelInputs(one, X)
    assert inputs.batch(3, lambda item: (item, X)).args == (3, X)
    assert inputs.batch(3, lambda item: {"x": item}).kwargs == {"x": 3}
    with pytest.raises(DataError, match=r"feed returned something(.|\n)*NoneType"):
        inputs.batch(3, lambda item: None)


def test_what_stays_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sparsebit.batches")
    labels = ModelInputs(one, X)
    for _ in range(2):
        labels.batch((X, Y))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "item 2 of each batch" in caplog.text
    caplog.clear()
    masks = ModelInputs(optional, X)
    masks.batch((X, Y)), masks.batch({"ids": X, "mask": Y})
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "also takes mask" in caplog.text and "feed=" in caplog.text


def test_example_inputs_may_be_a_tensor_a_tuple_or_a_dict() -> None:
    assert example_call(X) == ((X,), {}) and example_call([X, Y], {"c": 1}) == ((X, Y), {"c": 1})
    assert example_call({"a": X}) == ((), {"a": X}) and example_call() == ((), {})
    assert as_call(((X,), {"a": Y})) == ((X,), {"a": Y}) and as_call((X, Y)) == ((X, Y), {})


def test_an_example_is_made_from_a_batch() -> None:
    x, y = torch.zeros(8, 3), torch.arange(8)
    args, kwargs = ModelInputs(one).example_from((x, y))
    assert [tuple(a.shape) for a in args] == [(2, 3)] and kwargs == {}
    assert set(ModelInputs().example_from({"ids": x, "y": y}).kwargs) == {"ids"}
    uneven = Call((x, torch.zeros(5, 5)))  # a mask of its own sizes is not cut
    assert few(uneven) is uneven


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


def test_a_model_is_where_its_parameters_are_or_else_its_buffers() -> None:
    norm = torch.nn.BatchNorm1d(2, affine=False, device="meta")
    assert device_of(torch.nn.Linear(2, 2)).type == "cpu" and device_of(norm).type == "meta"
    assert device_of(torch.nn.ReLU()).type == device_of(len).type == "cpu"
    assert device_of(torch.nn.ReLU(), "cuda:1") == torch.device("cuda", 1)


def test_to_device_reaches_every_tensor() -> None:
    moved = to_device({"a": [X, (X, 3)], "b": None}, torch.device("meta"))
    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta and moved["a"][1][1] == 3


def test_recorded_samples_are_cut_to_the_size_of_an_example() -> None:
    call = Call((torch.arange(12.0).view(4, 3),), {"flag": True})
    cut = crop_like(call, torch.zeros(2, 3))
    assert cut is not None
    assert torch.equal(cut[0][0], call[0][0][:2]) and cut[1] == {"flag": True}


@pytest.mark.parametrize(
    "dummy", [torch.zeros(2, 4), torch.zeros(5, 3), torch.zeros(2, 3).long(), torch.tensor(1.0), ()]
)
def test_samples_of_another_kind_are_not_offered(dummy: object) -> None:
    assert crop_like(Call((torch.zeros(4, 3),)), dummy) is None
