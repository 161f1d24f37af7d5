"""Nested example inputs: what is kept comes back equal, what is not is refused, and nothing read runs code."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.storage import ArtifactError
from sparsebit.storage.nested import UnsupportedValue, decode_call, decode_nested, encode_call, encode_nested

PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_encoded_comes_back_through_json(value: Any) -> None:
    written = json.dumps(encode_nested(value, keep=str))
    assert decode_nested(json.loads(written), find=str) == value


def test_tensors_are_found_again() -> None:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> int:
        kept.append(tensor)
        return len(kept) - 1

    x = torch.ones(2)
    written = encode_call((x,), OrderedDict(scale=math.nan), keep)
    args, kwargs = decode_call(written, kept.__getitem__)
    assert args[0] is x and math.isnan(kwargs["scale"])


class Pair(NamedTuple):
    left: int


@dataclass
class Box:
    left: int


@pytest.mark.parametrize("value", [Pair(1), Box(1), object(), {(1, 2): 3}, torch.float32, 1j, {1}])
def test_other_types_are_unsupported(value: Any) -> None:
    with pytest.raises(UnsupportedValue):
        encode_nested([value], keep=str)
    written = json.loads(json.dumps(encode_call([], {"x": value}, keep=str)))
    with pytest.raises(ArtifactError, match=rf"could not be saved(.|\n)* {type(value).__name__} among them"):
        decode_call(written, find=str)


@pytest.mark.parametrize(
    "data",
    [
        *(
            [],
            {},
            {"tuple": 3},
            {"tuple": [], "list": []},
            {"dict": {"a": 1}},
            {"dict": [["a"]]},
            {"float": "1"},
        ),
        *({"dict": [[[], 1]]}, {"set": [1]}, {"__enum__": True}, {"tuple": [[]]}),
    ],
)
def test_what_was_not_encoded_here_is_refused(data: Any) -> None:
    with pytest.raises(ArtifactError, match=r"example inputs are damaged(.|\n)*pass example_inputs="):
        decode_nested(data, find=str)


@pytest.mark.parametrize("data", [1, {"tuple": []}, {"tuple": [{"list": []}, {"dict": []}]}])
def test_a_call_is_a_tuple_and_a_dict(data: Any) -> None:
    with pytest.raises(ArtifactError, match="positional and keyword arguments"):
        decode_call(data, find=str)
