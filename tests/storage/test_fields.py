"""Fields of a file that someone may have edited."""

from __future__ import annotations

from typing import Any

import pytest

from sparsebit.storage import ArtifactError, Fields

GOOD = {
    "text": "t",
    "flag": True,
    "integer": 3,
    "number": 0.5,
    "texts": ["a"],
    "names": {"a": "b"},
    "section": {},
}


def test_right_fields_are_given() -> None:
    fields = Fields(GOOD, "a.json")
    for key, value in GOOD.items():
        found = getattr(fields, key)(key)
        assert (found.data if isinstance(found, Fields) else found) == value
    assert "text" in fields and fields.value("text") == "t"


WRONG: dict[str, list[Any]] = {
    "text": [None, 3, ["t"]],
    "flag": [None, 1, "true"],
    "integer": [None, True, -1, 2**63, 1.0, "3"],
    "number": [None, True, float("inf"), 10**400, "1"],
    "texts": ["a", [1], None],
    "names": [[], {"a": 1}, None],
    "section": [[], None, {1: 2}],
}


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in WRONG.items() for value in values]
)
def test_wrong_fields_are_named(kind: str, value: Any) -> None:
    with pytest.raises(ArtifactError, match=r"a.json: '?x'? is not in sparsebit's format"):
        getattr(Fields({"x": value}, "a.json"), kind)("x")


def test_missing_fields_and_other_shapes() -> None:
    with pytest.raises(ArtifactError, match="'x' is not in sparsebit's format"):
        Fields({}, "a.json").value("x")
    for data in (3, None, [], {1: 2}):
        with pytest.raises(ArtifactError, match=r"a.json is not in sparsebit's format"):
            Fields(data, "a.json")
    with pytest.raises(ArtifactError, match=r"a.json is not in sparsebit's format"):
        Fields.each({}, "a.json")
