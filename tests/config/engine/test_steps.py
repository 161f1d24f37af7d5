"""Lists of steps: every way to write one, and what is refused. What a config does with them: its own tests."""

from __future__ import annotations

import pytest

from sparsebit.config.engine.options import Options
from sparsebit.config.engine.plugins import PlugInRule, PlugIns
from sparsebit.config.engine.steps import Step, steps_reader
from sparsebit.config.engine.values import Refused

SHAPES = PlugIns(
    "shape",
    PlugInRule,
    {"circle": PlugInRule(spellings=("disc",), options=("radius",)), "point": PlugInRule(options=())},
)
READ = steps_reader(SHAPES, "{circle: {radius: 2}}")


def test_every_way_to_write_steps() -> None:
    assert READ.parse("Disc") == READ.parse(["circle"]) == READ.parse({"circle": None})
    found = READ.parse(["point", {"circle": {"radius": 2}}])
    assert found == (Step("point", Options()), Step("circle", Options(radius=2)))
    assert READ.parse(found) == found
    assert READ.write(found) == ["point", {"circle": {"radius": 2}}]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "a list of steps"),
        ([3], r"a name, or one name with its options, such as \{circle: \{radius: 2\}\}"),
        ([{"circle": 3}], "a name, or one name with its options"),
        ([{"circle": False}], "a name, or one name with its options"),  # it would be switched on
        (["cricle"], "one of circle, point"),
        ([{"point": {"radius": 2}}], "an option of point, not 'radius'"),
    ],
)
def test_what_is_refused(value: object, words: str) -> None:
    with pytest.raises(Refused, match=words):
        READ.parse(value)
