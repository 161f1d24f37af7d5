"""Vectors in int8 beside float64."""

from __future__ import annotations

import pytest
import torch

from sparsebit.numerics.int8_vectors import round_vectors, scale_sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_within_half_a_step_and_sums_are_scaled(dtype: torch.dtype) -> None:
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    steps, scale = round_vectors(x)
    assert steps.dtype == torch.int8 and (steps.abs().amax(1) == 127).all()
    assert ((steps * scale).double() - x.double()).abs().le(0.5001 * scale).all()
    sums, rows, bias = steps.int(), torch.rand(40) + 0.5, torch.randn(40).to(dtype)
    expected = sums.double() * rows.double() * scale.double() + bias.double()
    close = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        scale_sums(sums, rows, scale, bias, dtype).double(), expected, rtol=close, atol=2 * close
    )
