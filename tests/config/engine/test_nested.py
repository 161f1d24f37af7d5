"""Nested mappings: walking and setting."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.engine.nested import leaves, plain, section_at

KEYS = st.sampled_from(["A", "B", "C"])
TREES = st.recursive(
    st.dictionaries(KEYS, st.integers()),
    lambda inner: st.dictionaries(KEYS, st.integers() | inner),
    max_leaves=8,
)


@given(TREES)
def test_leaves_say_everything_there_is(tree: dict[str, Any]) -> None:
    built: dict[str, Any] = {}
    for path, value in leaves(tree):
        *above, last = path.split(".")
        section = section_at(built, above)
        assert section is not None
        section[last] = value
    assert dict(leaves(built)) == dict(leaves(tree))


def test_a_path_through_a_value_has_no_section() -> None:
    assert section_at({"A": 3}, ["A"]) is None
    data: dict[str, Any] = {"A": None}
    assert section_at(data, ["A", "B"]) == {}
    assert data == {"A": {"B": {}}}


def test_plain_copies_mappings_of_any_kind() -> None:
    inner = MappingProxyType({"B": (1, 2)})
    assert plain({"A": inner}) == {"A": {"B": [1, 2]}}
