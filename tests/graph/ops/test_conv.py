"""Convolutions: weights, the general aten operator, and running with another weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.graph.ops import OPS
from tests.graph.ops.sampling import one_node, parameter, real, sample

KINDS = [(kind, dims) for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)]


def layer(kind: str, dims: int) -> Any:
    return getattr(nn, f"{kind}{dims}d")(4, 6, 3, stride=2, padding=1, groups=2).double()


@pytest.mark.parametrize(("kind", "dims"), KINDS)
def test_a_layer_runs_with_another_weight(kind: str, dims: int) -> None:
    one, x = layer(kind, dims), real(2, 4, *[7] * dims)
    spec, weight = one_node(sample(one, x)).call.spec, torch.randn_like(one.weight)
    assert spec.with_weight is not None
    ours = spec.with_weight(one, weight, x)
    one.weight.data = weight
    assert torch.equal(ours, one(x)) and spec.spatial == dims


@pytest.mark.parametrize(("kind", "dims"), KINDS)
def test_the_axes_of_the_weight_are_output_and_input(kind: str, dims: int) -> None:
    one, spec = layer(kind, dims), one_node(sample(layer(kind, dims), real(2, 4, *[7] * dims))).call.spec
    assert spec.weight_axes is not None
    sizes = [one.weight.shape[axis] for axis in spec.weight_axes]
    assert sizes == ([3, 4] if kind == "ConvTranspose" else [6, 2])


@pytest.mark.parametrize("transposed", [True, False])
def test_the_general_operator_is_the_named_one(transposed: bool) -> None:
    weight = parameter(4, 6, 3) if transposed else parameter(6, 4, 3)
    call = sample(torch.convolution, real(2, 4, 7), weight, None, (1,), (0,), (1,), transposed, (0,), 1)
    assert one_node(call).call.spec is OPS["conv_transpose1d" if transposed else "conv1d"]
