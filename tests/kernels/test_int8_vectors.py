"""Vectors in int8 on a GPU, beside torch's operators."""

from __future__ import annotations

import pytest
import torch

from sparsebit.kernels.int8_vectors import round_fused, scale_fused
from sparsebit.numerics.grid import SCALE_OF_ZEROS
from sparsebit.numerics.int8_vectors import round_vectors, scale_sums


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("vectors", "width"), [(0, 64), (1, 8192), (7, 1), (300, 5000), (64, 2048)])
def test_equal_to_operators(vectors: int, width: int, dtype: torch.dtype) -> None:
    # With 127 in each vector, scales are 1 however a device divides.
    x = (torch.rand(vectors, width, device="cuda") * 254 - 127).to(dtype)
    x[:, 0] = 127
    if vectors > 4:
        x[1], x[2, 0], x[3, width - 1] = 0, torch.nan, torch.inf
    (steps, scale), expected = round_fused(x.T.contiguous().T, SCALE_OF_ZEROS), round_vectors(x)
    known = expected[1].isfinite()
    assert torch.equal(steps * known, expected[0] * known)
    assert torch.equal(scale.nan_to_num(-1), expected[1].nan_to_num(-1))
    sums = torch.randint(-(2**20), 2**20, (vectors, 3001), dtype=torch.int32, device="cuda")
    rows, bias = torch.rand(3001, device="cuda") / 2**15, torch.randn(3001, device="cuda").to(dtype)
    for one in (bias, None):
        found = scale_fused(sums, rows, scale, one, dtype)
        assert torch.equal(found.nan_to_num(), scale_sums(sums, rows, scale, one, dtype).nan_to_num())
