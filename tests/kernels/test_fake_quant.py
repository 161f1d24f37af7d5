"""Fused fake-quantization against ``numerics.snapping``: on the GPU, and what is declared about it on any machine."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu.fake_quant import Case, compare, compare_compiled, draw_cases
from sparsebit.kernels import fake_quant
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


@pytest.mark.gpu
def test_the_operators_declare_what_they_do() -> None:
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    scale, zero_point = torch.ones(4, device="cuda", requires_grad=True), torch.zeros(4, device="cuda")
    arguments = (x, scale, zero_point, None, -8.0, 7.0, 1.0, 4, 8, 4, False)
    torch.library.opcheck(torch.ops.sparsebit.snap, arguments)


@pytest.mark.gpu
def test_compiled_without_a_graph_break() -> None:
    assert compare_compiled() is None


def test_other_devices_and_dtypes_are_left_to_the_reference() -> None:
    assert snap_fused(torch.ones(3), torch.ones(1), torch.zeros(1), -8, 7) is None


def test_shapes_are_known_without_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_quant, "AVAILABLE", True)
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device="cuda", dtype=torch.bfloat16)
        x = x.to(memory_format=torch.channels_last)
        scale, zero_point = (torch.ones(1, 3, 1, 1, device="cuda") for _ in range(2))
        y = snap_fused(x, scale, zero_point, -8, 7)
        assert y is not None and y.shape == x.shape and y.dtype == x.dtype and y.stride() == x.stride()
        settings = (None, -8.0, 7.0, 1.0, 40, 3, 3, True)
        to_x, to_scale, to_zero_point = torch.ops.sparsebit.snap_backward(
            y, x, scale, zero_point, *settings, True
        )
        assert to_x.stride() == x.stride() and to_x.dtype == x.dtype
        assert to_scale.shape == to_zero_point.shape == (1, 3, 1, 1)
        assert snap_fused(x.double(), scale, zero_point, -8, 7) is None
