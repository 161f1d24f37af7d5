"""Calls from examples, on another device, and with fewer samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.batches import (
    Call,
    as_call,
    crop_like,
    device_of,
    example_call,
    fit_examples,
    to_device,
)
from sparsebit.errors import SparsebitError

X, Y = torch.zeros(1), torch.ones(1)


def test_example_inputs_may_be_a_tensor_a_tuple_or_a_dict() -> None:
    assert example_call(X) == ((X,), {}) and example_call([X, Y], {"c": 1}) == ((X, Y), {"c": 1})
    assert example_call({"a": X}) == ((), {"a": X}) and example_call() == ((), {})
    assert as_call(((X,), {"a": Y})) == ((X,), {"a": Y}) and as_call((X, Y)) == ((X, Y), {})


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


@pytest.mark.parametrize("wrong", [3, "mask", [X], X])
def test_keyword_arguments_are_a_dict(wrong: Any) -> None:
    with pytest.raises(SparsebitError, match="example_kwargs holds the keyword arguments"):
        example_call(X, wrong)


def test_examples_fit_the_model() -> None:
    examples = Call((torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)))
    fitted = fit_examples(nn.Linear(4, 4).double(), examples)
    assert [one.dtype for one in fitted[0]] == [torch.float64, torch.int64]
