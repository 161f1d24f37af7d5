"""A name stands for everything in torch that is called so."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sparsebit.graph.ops.spellings import named, present


def test_a_name_stands_for_functions_methods_in_place_twins_and_aten() -> None:
    found = named("relu", torch.nn.ReLU)
    assert {torch.relu, F.relu, torch.Tensor.relu, torch.relu_, "aten::relu", "aten::relu_"} <= set(found)
    assert found[-1] is torch.nn.ReLU and len(set(found)) == len(found)


def test_types_and_modules_that_share_a_name_by_chance_are_left_out() -> None:
    assert torch.float not in named("float") and torch.fft not in named("fft")
    assert named("aten::max.other", "package.name") == ("aten::max.other", "package.name")


def test_what_this_torch_lacks_is_left_out() -> None:
    assert present(torch, "relu", "no_such_function") == (torch.relu,)
