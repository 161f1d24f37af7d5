from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.graph.passes.channel_affine import Affine, affine_of_statistics, scale_inputs, scale_outputs

CHANNELS = st.integers(1, 3)


def affine(channels: int) -> Affine:
    return Affine(torch.randn(channels, dtype=torch.float64), torch.randn(channels, dtype=torch.float64))


def test_statistics_give_what_batch_norm_computes() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    mean, var, gamma, beta = torch.randn(3), torch.rand(3), torch.randn(3), torch.randn(3)
    for weight, bias in ((gamma, beta), (None, beta), (gamma, None), (None, None)):
        norm = affine_of_statistics(mean, var, weight, bias, 1e-3)
        wide = [None if tensor is None else tensor.double() for tensor in (mean, var, weight, bias)]
        expected = F.batch_norm(x, *wide, eps=1e-3)
        torch.testing.assert_close(x * norm.scale + norm.shift, expected)


@given(CHANNELS, CHANNELS, CHANNELS, st.booleans(), st.booleans())
def test_scaling_outputs_is_the_affine_after_the_layer(
    groups: int, inputs: int, outputs: int, transposed: bool, biased: bool
) -> None:
    shape = (groups * inputs, outputs) if transposed else (groups * outputs, inputs)
    weight = torch.randn(*shape, 3, dtype=torch.float64)
    bias = torch.randn(groups * outputs, dtype=torch.float64) if biased else None
    layer = F.conv_transpose1d if transposed else F.conv1d
    norm, x = affine(groups * outputs), torch.randn(2, groups * inputs, 6, dtype=torch.float64)
    expected = layer(x, weight, bias, groups=groups) * norm.scale[:, None] + norm.shift[:, None]
    folded = scale_outputs(weight, bias, norm, groups=groups, transposed=transposed)
    torch.testing.assert_close(layer(x, *folded, groups=groups), expected)


@given(CHANNELS, CHANNELS, CHANNELS, st.booleans())
def test_scaling_inputs_is_the_affine_before_the_layer(
    groups: int, inputs: int, outputs: int, biased: bool
) -> None:
    weight = torch.randn(groups * outputs, inputs, 3, dtype=torch.float64)
    bias = torch.randn(groups * outputs, dtype=torch.float64) if biased else None
    norm, x = affine(groups * inputs), torch.randn(2, groups * inputs, 6, dtype=torch.float64)
    expected = F.conv1d(x * norm.scale[:, None] + norm.shift[:, None], weight, bias, groups=groups)
    folded = scale_inputs(weight, bias, norm, groups=groups, transposed=False)
    torch.testing.assert_close(F.conv1d(x, *folded, groups=groups), expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_scaling_inputs_of_a_transposed_layer_without_shift(groups: int) -> None:
    weight, x = torch.randn(4, 3, 3, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)
    norm = Affine(torch.randn(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    folded = scale_inputs(weight, None, norm, groups=groups, transposed=True)
    expected = F.conv_transpose1d(x * norm.scale[:, None], weight, stride=2, groups=groups)
    torch.testing.assert_close(F.conv_transpose1d(x, *folded, stride=2, groups=groups), expected)


def test_no_bias_appears_where_nothing_is_shifted() -> None:
    norm = Affine(torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    assert scale_inputs(torch.ones(3, 2), None, norm, groups=1, transposed=False)[1] is None
