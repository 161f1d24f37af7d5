"""Targets are found by name; a clash and an unknown name say what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sparsebit.errors import RegistryError
from sparsebit.targets import TARGETS, Accepts, OpRule, Row, Target, register_target, unregister_target


def test_the_built_in_targets_are_there_under_their_own_names() -> None:
    assert list(TARGETS) == ["onnxruntime", "openvino", "tensorrt", "virtual"]
    assert all(TARGETS[name].name == name for name in TARGETS)
    with pytest.raises(RegistryError, match="did you mean 'openvino'"):
        TARGETS["openvin"]


def test_one_may_be_replaced_on_purpose_and_taken_out() -> None:
    mine = register_target(replace(TARGETS["virtual"], name="mine"))
    with pytest.raises(RegistryError, match="already taken"):
        register_target(mine)
    other = replace(mine, source="another one")
    assert register_target(other, replace=True) is TARGETS["mine"]
    unregister_target("mine")
    assert "mine" not in TARGETS


def test_a_target_of_the_library_comes_back() -> None:
    with pytest.raises(RegistryError, match="'virtual' is part of the library"):
        unregister_target("virtual")
    own = TARGETS["virtual"]
    register_target(replace(own, source="another one"), replace=True)
    unregister_target("virtual")
    assert TARGETS["virtual"] is own


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: OpRule(when="join", because="x"), "when of a target cannot be 'join'"),  # type: ignore[arg-type]
        (lambda: Row(schemes=("per-chanel",)), "schemes of a target cannot be 'per-chanel'"),  # type: ignore[arg-type]
        (lambda: Row(bits=(99,), schemes=()), "bits of a target cannot be 99"),
        (lambda: Row(dtype="fp8", schemes=()), "dtype of a target cannot be 'fp8'"),  # type: ignore[arg-type]
        (lambda: Target(name="x", forms="gpu"), "forms of a target cannot be 'gpu'"),  # type: ignore[arg-type]
        (lambda: Target(name="x", accepts={"X": Accepts(rows=())}), "accepts of a target cannot be 'X'"),  # type: ignore[dict-item]
        (lambda: Target(name="x", rules=["add"]), "rules map names of operators to OpRule"),  # type: ignore[arg-type]
        (lambda: Target(name="x", rules={"add": 1}), r"to OpRule\n.*add 1"),  # type: ignore[dict-item]
    ],
)
def test_a_misspelt_field_is_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(RegistryError, match=told):
        make()


@pytest.mark.parametrize("wrong", [None, "npu", Target])
def test_what_is_not_a_target_is_refused(wrong: object) -> None:
    with pytest.raises(
        RegistryError, match=r"a target is a sparsebit.targets.Target[\s\S]*dataclasses.replace"
    ):
        register_target(wrong)  # type: ignore[arg-type]
