"""Targets are found by name; a clash and an unknown name say what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsebit.errors import RegistryError
from sparsebit.targets import TARGETS, Target, register_target, unregister_target


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


@pytest.mark.parametrize("wrong", [None, "npu", Target])
def test_what_is_not_a_target_is_refused(wrong: object) -> None:
    with pytest.raises(
        RegistryError, match=r"a target is a sparsebit.targets.Target[\s\S]*dataclasses.replace"
    ):
        register_target(wrong)  # type: ignore[arg-type]
