"""Dataclasses from plain data: the right types come back, all others are refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from sparsebit.storage.typed import from_plain


@dataclass(frozen=True, kw_only=True)
class Inner:
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    on: bool = False
    rate: float = 0.5
    limit: int | None = None
    inner: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = ()
    options: Mapping[str, int | str] = field(default_factory=dict)
    anything: Any = None


def test_a_round_trip_through_json() -> None:
    made = Outer(
        name="n", limit=3, inner=Inner(kind="b", sizes=(1, 2)), several=(Inner(),), options={"x": "y"}
    )
    assert from_plain(Outer, json.loads(json.dumps(asdict(made)))) == made
    assert from_plain(Outer, {"name": "n", "rate": 1}) == Outer(name="n", rate=1)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": 3}, "Outer.name"),
        ({"on": 1}, "Outer.on"),
        ({"rate": "1"}, "Outer.rate"),
        ({"limit": True}, "Outer.limit"),
        ({"limit": 2**40}, "Outer.limit"),
        ({"inner": {"kind": "c"}}, "Outer.inner.kind"),
        ({"inner": {"kind": []}}, "Outer.inner.kind"),
        ({"inner": {"sizes": [None]}}, "Outer.inner.sizes"),
        ({"inner": [1]}, "Outer.inner has no such fields"),
        ({"several": {"a": 1}}, "Outer.several"),
        ({"options": {"x": [1]}}, "Outer.options"),
        ({"unknown": 1}, "Outer has no such fields"),
        ({"name": None}, "Outer.name"),
    ],
)
def test_another_type_is_refused_by_name(change: dict[str, Any], where: str) -> None:
    with pytest.raises(TypeError, match=where):
        from_plain(Outer, {"name": "n"} | change)
    with pytest.raises(TypeError, match="no such fields"):
        from_plain(Outer, [])
