"""What one weight becomes, and what that costs."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.methods.solver import WeightSpec, output_loss


def test_layouts_and_groups_that_do_not_divide() -> None:
    assert WeightSpec(group_size=16).layout((4, 32)).group_size == 16
    assert WeightSpec(group_size=None).layout((4, 32)).kind == "channel"
    assert WeightSpec(group_size=64).layout((4, 32)).kind == "channel"
    with pytest.raises(SparsebitError, match="30 input channels cannot be divided into groups of 16"):
        WeightSpec(group_size=16).layout((4, 30))


def test_the_loss_is_that_of_the_outputs() -> None:
    weight, solved, inputs = torch.randn(3, 5), torch.randn(3, 5), torch.randn(50, 5)
    wanted = (inputs @ (weight - solved).T).square().sum() / (inputs @ weight.T).square().sum()
    assert output_loss(weight, solved, inputs.T @ inputs / 50) == pytest.approx(float(wanted), rel=1e-4)
