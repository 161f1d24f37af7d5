"""JSON that someone else may have edited."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.storage import ArtifactError
from sparsebit.storage.json_text import canonical, read_json

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(TREES)
def test_what_is_written_is_read(tree: Any) -> None:
    assert read_json(canonical(tree), "a.json") == tree


def test_one_spelling_whatever_the_order() -> None:
    assert canonical({"b": 1, "a": [1.0]}) == canonical({"a": [1.0], "b": 1}) == b'{"a":[1.0],"b":1}'


@given(st.binary(max_size=60))
def test_any_bytes_are_data_or_our_error(data: bytes) -> None:
    try:
        read_json(data, "a.json")
    except ArtifactError as error:
        str(error).encode()  # a message that can be printed


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"NaN", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"1" * 5000, "digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 200 + b"]" * 200, "nested too deeply"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b"\xff", "can't decode byte"),
        (b"1e999", "cannot be read"),
        (json.dumps({"a": 1})[:-1].encode(), "delimiter"),
    ],
)
def test_what_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ArtifactError, match=rf"a.json cannot be read.*{reason}|{reason}"):
        read_json(data, "a.json")
