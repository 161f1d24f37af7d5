"""Fused fake-quantization on the GPU against ``numerics.snapping``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu.fake_quant import Case, compare, draw_cases
from sparsebit.config import TensorSpec
from sparsebit.kernels.fake_quant import snap_fused, snap_with
from sparsebit.numerics import CodeType, Grid, snapping
from sparsebit.quantization.quantizers import PACT


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
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pact_equals_its_composition_of_operators(
    symmetric: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    quantizer = PACT("it", "A", TensorSpec(quantizer="pact", bits=4, symmetric=symmetric)).cuda()
    x = (torch.randn(8, 16, 33, 31, device="cuda") * 8).to(dtype)
    grad = torch.randn_like(x)
    found = []
    for used in (True, False):
        monkeypatch.setattr(snapping, "USE_KERNELS", used)
        leaf, quantizer.alpha.grad = x.clone().requires_grad_(), None
        y = quantizer.snap(leaf)
        y.backward(grad)
        assert leaf.grad is not None and quantizer.alpha.grad is not None
        found.append((y.detach(), leaf.grad, quantizer.alpha.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-4, atol=1e-2)


def test_other_devices_and_dtypes_are_left_to_the_reference() -> None:
    assert snap_fused(torch.ones(3), torch.ones(1), torch.zeros(1), -8, 7) is None


class PlainKernels:
    """Stands for prepared kernels: sums of a gradient by channel, of tensors in the memory order they are made for."""

    def __init__(self, stride: tuple[int, ...]) -> None:
        self.stride = stride

    def snap(self, x: Tensor, *_: Any) -> Tensor:
        return x.clone()

    def backward(self, *_: bool) -> Any:
        def compute(grad: Tensor, x: Tensor, scale: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
            assert x.stride() == self.stride
            return grad.clone(), (grad * x).sum((0, 2, 3)), None

        return compute


def test_hooks_may_return_what_was_kept_in_another_memory_format() -> None:
    """As ``save_on_cpu`` does with pinned memory: the kernels would read the channels of other values."""
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    scale = torch.ones(3, requires_grad=True)
    kernels: Any = PlainKernels(x.stride())
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor.contiguous()):
        snap_with(kernels, x, scale, torch.zeros(3), 1.0).backward(torch.ones(2, 3, 4, 4))
    torch.testing.assert_close(scale.grad, x.sum((0, 2, 3)))
