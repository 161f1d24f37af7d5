"""Plug-ins: their names, and the options that their own fields declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from sparsebit.config.engine.plugins import (
    PlugInClasses,
    PlugInRule,
    PlugIns,
    Settings,
    name_to_register,
    wrong_options,
)
from sparsebit.config.engine.values import Refused, whole
from sparsebit.errors import ConfigError, RegistryError


@dataclass(frozen=True, kw_only=True)
class Window(Settings):
    size: Annotated[int, whole(1)] = 8
    decay: float = 0.5
    mode: Literal["fast", "exact"] = "fast"
    label: str = ""
    padded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay > 1:
            raise ValueError("decay above 1")
        if self.decay < 0:
            raise KeyError("decay")


def complaints(rule: PlugInRule, **options: object) -> list[tuple[str, str, str, str]]:
    return [
        (wrong.path, wrong.expected, wrong.got, wrong.hint)
        for wrong in wrong_options("window", rule, options)
    ]


DECLARED = PlugInRule(options=Window)


def test_the_fields_of_a_dataclass_are_its_options() -> None:
    assert DECLARED.option_names == ("size", "decay", "mode", "label", "padded")
    assert complaints(DECLARED, size=4, decay=1, mode="exact", label="x", padded=True) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sise": 4}, ("sise", "an option of window", "'sise'", "did you mean 'size'?")),
        ({"size": 4.5}, ("size", "an integer of at least 1 for option size of window", "4.5", "")),
        ({"size": True}, ("size", "an integer of at least 1 for option size of window", "True", "")),
        ({"decay": "x"}, ("decay", "a number for option decay of window", "'x'", "")),
        ({"mode": "slow"}, ("mode", "fast or exact for option mode of window", "'slow'", "")),
        ({"label": 1}, ("label", "a text for option label of window", "1", "")),
        ({"padded": 1}, ("padded", "true or false for option padded of window", "1", "")),
        ({"size": 0}, ("size", "an integer of at least 1 for option size of window", "0", "")),
        ({"decay": -1}, ("", "options that window accepts", "decay=-1", "KeyError: 'decay'")),
        ({"decay": 2}, ("", "options that window accepts", "decay=2", "decay above 1")),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], told: tuple[str, ...]) -> None:
    assert complaints(DECLARED, **options) == [told]


def test_settings_are_checked_when_they_are_made() -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)Window: size cannot be used.*at least 1 for option size.*got:.*0"
    ):
        Window(size=0)


def test_options_by_name_only_or_not_at_all() -> None:
    assert complaints(PlugInRule(options=("size",)), size="anything") == []
    assert complaints(PlugInRule(options=()), size=1)[0][3] == "window has no options"
    assert complaints(PlugInRule(), whatever=1) == []  # nothing is known, so nothing is refused


def test_names_in_any_spelling_and_advice_for_the_rest() -> None:
    shapes = PlugIns("shape", PlugInRule, {"Circle": PlugInRule(spellings=("round_one",))})
    read = shapes.reader()
    assert read.parse(" Round-One ") == read.parse("CIRCLE") == "circle"
    with pytest.raises(Refused) as caught:
        read.parse("cirle")
    assert (caught.value.expected, caught.value.hint) == ("the name of a shape", "did you mean 'circle'?")
    with pytest.raises(RegistryError, match="'Round One' is another spelling of shape 'circle'"):
        shapes.add("Round One")
    shapes.add("circle", PlugInRule(options=("radius",)))  # another rule keeps the spellings
    assert read.parse("round one") == "circle" and shapes["circle"].option_names == ("radius",)


def test_a_class_without_a_name_is_refused_at_once() -> None:
    class Nameless:
        pass

    class Named:
        TYPE = "named"

    assert name_to_register(Named, None, "register_x") == "named"
    assert name_to_register(Named, "other", "register_x") == "other"
    with pytest.raises(RegistryError) as caught:
        name_to_register(Nameless, None, "register_x")
    assert 'write @register_x("name"), or give the class an attribute TYPE' in str(caught.value)


def test_an_option_may_have_any_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Circle:
        name: str

    shapes: PlugInClasses[type, PlugInRule] = PlugInClasses(PlugIns("shape", PlugInRule))
    shapes.register("circle")(Circle)
    assert shapes.make("circle", name="round") == Circle(name="round")
