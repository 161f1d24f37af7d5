"""Registries: names are case-insensitive, clashes and unknown names are loud and say what to do."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.errors import RegistryError, SparsebitError
from sparsebit.registry import Registry

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=12)


def shapes() -> Registry[object]:
    registry: Registry[object] = Registry("shape")
    registry.register("circle")("round")
    registry.register("Square")("even")
    return registry


@given(st.dictionaries(NAMES, st.integers()))
def test_it_is_a_mapping_of_what_was_registered(items: dict[str, int]) -> None:
    registry: Registry[int] = Registry("number")
    for name, item in items.items():
        assert registry.register(name)(item) is item
    assert dict(registry) == items
    assert list(registry) == sorted(items)
    assert len(registry) == len(items)
    assert all(name.upper() in registry and registry[name.upper()] == items[name] for name in items)


def test_names_are_case_insensitive_also_when_registering() -> None:
    registry = shapes()
    assert registry["square"] == registry["SQUARE"] == "even"
    assert "SQUARE" in registry
    assert 3 not in registry


def test_a_clash_names_what_is_there_and_both_ways_out() -> None:
    with pytest.raises(RegistryError) as caught:
        shapes().register("CIRCLE")("oval")
    assert str(caught.value) == (
        "shape 'circle' is already taken by 'round'\n"
        "  next: choose another name, or pass replace=True to override it on purpose"
    )


def test_a_clash_leaves_the_first_one_in_place() -> None:
    registry = shapes()
    with pytest.raises(RegistryError):
        registry.register("circle")("oval")
    assert registry["circle"] == "round"


def test_replacing_on_purpose() -> None:
    registry = shapes()
    registry.register("Circle", replace=True)("oval")
    assert registry["circle"] == "oval"
    assert len(registry) == 2


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(RegistryError) as caught:
        shapes()["cirle"]
    assert (
        str(caught.value)
        == "no shape named 'cirle'\n  next: did you mean 'circle'? there are: circle, square"
    )


def test_a_name_like_no_other_still_lists_what_there_is() -> None:
    with pytest.raises(RegistryError, match="next: there are: circle, square"):
        shapes()["zzzzzz"]


def test_an_unknown_name_is_a_lookup_error_of_ours() -> None:
    with pytest.raises(LookupError):
        shapes()["oval"]
    assert issubclass(RegistryError, SparsebitError)
    assert "oval" not in shapes()


def test_removing_makes_room() -> None:
    registry = shapes()
    registry.remove("CIRCLE")
    assert "circle" not in registry
    registry.register("circle")("oval")
    assert registry["circle"] == "oval"


def test_it_decorates_classes_and_functions_unchanged() -> None:
    registry: Registry[object] = Registry("thing")

    @registry.register("a class")
    class Thing: ...

    @registry.register("a function")
    def act() -> int:
        return 1

    assert registry["A Class"] is Thing
    assert registry["a function"] is act
    assert act() == 1


@pytest.mark.parametrize("name", ["", "  ", "a\nb", None, 3])
def test_what_is_not_a_name_is_refused(name: object) -> None:
    with pytest.raises(RegistryError, match=r"is not a name for a shape\n  expected: a text of one line"):
        shapes().register(name)("oval")  # type: ignore[arg-type]


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    def area(self) -> float:
        return 1.0


def test_plug_ins_of_another_kind_are_refused() -> None:
    registry: Registry[object] = Registry("shape", Shape)
    registry.register("class")(Square), registry.register("object")(Square())
    with pytest.raises(RegistryError, match=r"int is not a shape: it has no area\n.*derive it from .*Shape"):
        registry.register("number")(3)
    for incomplete in (type("Circle", (), {}), type("Circle", (Shape,), {})):
        with pytest.raises(RegistryError, match="Circle is not a shape: it has no area"):
            registry.register("circle")(incomplete)
    with pytest.raises(RegistryError, match="Circle is not a shape\n"):
        registry.register("circle")(type("Circle", (), {"area": Square.area}))


def test_a_method_that_takes_other_arguments_is_refused() -> None:
    registry: Registry[object] = Registry("shape", Shape)
    with pytest.raises(RegistryError, match=r"Square.area cannot be called[\s\S]*def area\(self, unit\)"):
        registry.register("square")(type("Square", (Shape,), {"area": lambda self, unit: 1.0}))
    registry.register("square")(type("Square", (Shape,), {"area": lambda self, unit=1: 1.0}))


def test_a_name_that_is_not_a_text_is_unknown() -> None:
    registry: Registry[int] = Registry("shape")
    registry.register("circle")(1)
    for name in (None, 3, ["circle"]):
        with pytest.raises(RegistryError, match="there are: circle"):
            registry[name]  # type: ignore[index]


def test_a_clash_with_something_long_is_told_in_short() -> None:
    registry = shapes()
    registry.register("long")("x" * 10_000)
    with pytest.raises(RegistryError) as caught:
        registry.register("long")("y")
    assert len(str(caught.value)) < 300


def test_removing_what_is_not_there_says_what_is() -> None:
    with pytest.raises(RegistryError, match=r"no shape named 'cirle'[\s\S]*did you mean 'circle'"):
        shapes().remove("cirle")
