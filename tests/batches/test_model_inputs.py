"""The one rule for data: what of a batch is the model's input, and what a loader may be."""

from __future__ import annotations

import logging
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsebit
from sparsebit.batches import (
    Call,
    DataError,
    ModelInputs,
    example_from,
    few,
)
from sparsebit.errors import SparsebitError

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
        (None, ([X], {"b": X}), ([Y], {"b": Y}), (([Y], {"b": Y}), {})),
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
        (None, (X, X), (X,), "takes 2 inputs, but the batch has 1"),
        (two, None, X, r"takes 2 inputs \(image, meta\), but the batch has 1"),
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


def test_what_stays_out_is_said_once_by_verbs_that_read_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sparsebit.batches")
    data = [(torch.randn(2, 4), torch.zeros(2)) for _ in range(2)]
    sparsebit.quantize(nn.Sequential(nn.Linear(4, 16), nn.ReLU()), data, "int8_onnxruntime", progress=False)
    assert caplog.text.count("not passed to the model: item 2 of each batch") == 1
    caplog.clear()
    pruning = {"SPARSER": {"TYPE": "structured", "STRATEGY": "activation_norm", "RATIO": 0.5}}
    sparsebit.prune(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), pruning, data)
    assert caplog.text.count("not passed to the model") == 1


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


def test_an_example_is_made_from_a_batch() -> None:
    x, y = torch.zeros(8, 3), torch.arange(8)
    args, kwargs = example_from(one, (x, y))
    assert [tuple(a.shape) for a in args] == [(2, 3)] and kwargs == {}
    assert set(example_from(None, {"ids": x, "y": y}).kwargs) == {"ids"}
    uneven = Call((x, torch.zeros(5, 5)))  # a mask of its own sizes is not cut
    assert few(uneven) is uneven


class Neighbours(nn.Module):
    """Takes the nodes of one graph and their edges as a square matrix: two rows of both are no graph."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        self.calls += 1
        return (edges + torch.eye(len(edges))) @ nodes.add_(0)


def test_an_example_is_the_whole_batch_where_the_model_cannot_run_on_a_few_samples() -> None:
    net, nodes, edges = Neighbours(), torch.randn(5, 3), torch.zeros(5, 5)
    assert example_from(net, (nodes, edges)).args[0].shape == (5, 3)
    assert net.calls == 0
    part = example_from(nn.Linear(3, 2), nodes)
    assert part.args[0].shape == (2, 3)


def test_a_list_of_more_items_than_the_model_has_arguments_is_one_argument() -> None:
    features = [X, X, X]
    assert ModelInputs(one).batch((features,)).args == (features,)
    labelled = ModelInputs(one).batch((features, Y))
    assert labelled.args == (features,) and labelled.labels is Y
    assert ModelInputs(two).batch(([X, Y], Y)).args == (X, Y)


def test_an_array_is_not_a_tensor() -> None:
    with pytest.raises(DataError, match=r"got: *ndarray(.|\n)*torch.from_numpy\(batch\)"):
        ModelInputs(one).batch(X.numpy())


def test_a_model_that_takes_the_dict_itself_is_told_how() -> None:
    batch = {"user": X, "item": Y}
    with pytest.raises(
        DataError, match=r"has no 'x'(.|\n)*if 'x' is the dict itself, feed=lambda batch: \(batch,\)"
    ):
        ModelInputs(one).batch(batch)
    assert ModelInputs(one).batch(batch, lambda batch: (batch,)).args == (batch,)


@pytest.mark.parametrize("wrong", [3, "images", [0]])
def test_feed_is_a_function(wrong: Any) -> None:
    with pytest.raises(DataError, match="feed cannot be called"):
        ModelInputs(one).batch(X, wrong)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (torch.ones(2, 2, device="meta"), "a tensor of the data is on the meta device"),
        (torch.ones(2, 2).to_sparse(), r"must be dense tensors\n.*sparse_coo"),
        (
            torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
            r"must be dense tensors\n.*nested",
        ),
    ],
)
def test_batches_without_plain_values_are_refused(batch: torch.Tensor, told: str) -> None:
    inputs = ModelInputs(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(SparsebitError, match=told):
        list(inputs.calls([batch], device=torch.device("cpu")))
