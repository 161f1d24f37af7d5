"""Fused fake-quantization on the GPU against ``numerics.snapping``."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.fake_quant import Case, compare, draw_cases
from sparsebit.kernels.fake_quant import snap_fused
from sparsebit.numerics import CodeType, Grid


@pytest.mark.gpu
@pytest.mark.parametrize("case", draw_cases(60, seed=2), ids=lambda case: f"{case.shape}-{case.layout}")
def test_kernels_equal_the_reference(case: Case) -> None:
    assert compare(case, "cuda") in (None, "not covered")


@pytest.mark.gpu
def test_nan_and_infinity_end_as_in_the_reference() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -0.0, 2.5, 3.5])
    expected = Grid(torch.ones(1), torch.zeros(1), CodeType("int", 4)).snap(x)
    found = snap_fused(x.cuda(), torch.ones(1, device="cuda"), torch.zeros(1, device="cuda"), -8, 7)
    assert found is not None
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_other_devices_and_dtypes_are_left_to_the_reference() -> None:
    assert snap_fused(torch.ones(3), torch.ones(1), torch.zeros(1), -8, 7) is None
