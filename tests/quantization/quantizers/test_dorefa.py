"""DoReFa: tanh before the grid."""

from __future__ import annotations

import pytest
import torch

from sparsebit.numerics.layout import Layout
from tests.quantization.quantizers.learning import learning


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
def test_results_fill_minus_one_to_one_whatever_the_size(size: float) -> None:
    x = torch.randn(4, 50) * size
    quantizer = learning("dorefa", "W", x, Layout(kind="tensor"), bits=4)
    y = quantizer(x)
    squashed = torch.tanh(x) / torch.tanh(x).abs().max()
    assert y.abs().max() == 1 and (y - squashed).abs().max() <= quantizer.scale.item() / 2 + 1e-6
    torch.testing.assert_close(quantizer.scale, torch.tensor([1 / 7]))


def test_the_largest_is_of_the_whole_tensor_also_per_channel() -> None:
    x = torch.tensor([[0.5, -0.25], [4.0, 1.0]])
    quantizer = learning("dorefa", "W", x, Layout(kind="channel"), bits=8, granularity="channel")
    squashed = torch.tanh(x) / torch.tanh(torch.tensor(4.0))
    torch.testing.assert_close(quantizer.scale, squashed.abs().amax(1) / 127)


def test_the_gradient_is_that_of_tanh_with_the_maximum_held() -> None:
    x = torch.randn(60, dtype=torch.float64).requires_grad_()
    quantizer = learning("dorefa", "W", x.detach(), Layout(kind="tensor"), bits=4)
    weights = torch.linspace(-1, 1, 60, dtype=torch.float64)
    (quantizer(x) * weights).sum().backward()
    squashed = torch.tanh(x.detach())
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weights * (1 - squashed**2) / squashed.abs().max())


def test_a_tensor_of_zeros_stays_zero() -> None:
    x = torch.zeros(3, 4).requires_grad_()
    quantizer = learning("dorefa", "W", x.detach(), Layout(kind="channel"), bits=4, granularity="channel")
    y = quantizer(x)
    y.sum().backward()
    assert y.eq(0).all() and x.grad is not None and not x.grad.isnan().any()
