"""Nodes that are run for what they do."""

from __future__ import annotations

import operator

import pytest
import torch

from sparsebit.graph.effects import assign
from sparsebit.graph.functional import check_branch
from sparsebit.graph.ops.effects import OPS
from sparsebit.graph.ops.lookup import find_function


def test_every_row_is_an_effect_and_carries_no_activation() -> None:
    assert all(spec.effect and not spec.activations and not spec.macs for spec in OPS)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (assign, "assign"),
        (check_branch, "assert"),
        (torch._assert, "assert"),
        (torch.ops.aten._assert_async.msg, "assert"),
        (operator.setitem, "setitem"),
        (torch._C._set_grad_enabled, "set_grad_enabled"),
        (torch.amp.autocast_mode._enter_autocast, "enter_autocast"),
    ],
)
def test_what_capture_writes_is_found(target: object, name: str) -> None:
    found = find_function(target)
    assert found is not None and found.spec.name == name and found.spec.effect


def test_switches_of_modes_are_a_family_of_their_own() -> None:
    assert {spec.name.split("_")[0] for spec in OPS if spec.family == "mode"} == {"set", "enter", "exit"}
