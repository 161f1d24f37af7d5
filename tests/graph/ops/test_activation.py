"""Activation functions by what they do to zero, to large numbers and to a scaled input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.graph.ops.activation import OPS
from sparsebit.graph.ops.spec import OpSpec

PLAIN = [
    spec for spec in OPS if spec.elementwise and not spec.random and spec.name not in ("prelu", "threshold")
]


def layer(spec: OpSpec) -> nn.Module:
    made = next(target for target in spec.targets if isinstance(target, type))
    assert issubclass(made, nn.Module)
    return made()


@pytest.mark.parametrize("spec", PLAIN, ids=lambda spec: spec.name)
def test_zero_stays_zero_exactly_where_the_row_says_so(spec: OpSpec) -> None:
    bounded = spec.bounds is not None and spec.name != "hardtanh"
    assert bool(layer(spec)(torch.zeros(1)) == 0) == (
        bool(spec.keeps_zero) or spec.name == "hardtanh" or bounded
    )


@pytest.mark.parametrize("spec", PLAIN, ids=lambda spec: spec.name)
def test_a_scaled_input_gives_a_scaled_result_exactly_where_the_row_says_so(spec: OpSpec) -> None:
    x = torch.tensor([-3.0, -0.3, 0.2, 5.0])
    assert torch.allclose(layer(spec)(4 * x), 4 * layer(spec)(x)) == bool(spec.homogeneous)


def test_the_softmax_family_is_not_elementwise() -> None:
    assert {spec.name for spec in OPS if not spec.elementwise} == {
        *("glu", "softmax", "log_softmax", "softmin", "gumbel_softmax")
    }
