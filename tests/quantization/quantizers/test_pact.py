"""PACT: a clip whose place is learned."""

from __future__ import annotations

import pytest
import torch

from sparsebit.quantization.quantizers import PACT
from tests.quantization.quantizers.learning import learning, slope


@pytest.mark.parametrize("symmetric", [False, True])
def test_alpha_is_where_the_config_says_whatever_the_data(symmetric: bool) -> None:
    x = torch.randn(200) * 100
    first = learning("pact", "A", x, symmetric=symmetric)
    assert isinstance(first, PACT) and first.alpha.item() == 10.0
    quantizer = learning("pact", "A", x, bits=4, symmetric=symmetric, quantizer_options={"alpha_value": 6.0})
    with torch.no_grad():
        y = quantizer(x)
    assert y.max() == 6.0 and y.min() == (-6.0 if symmetric else 0.0)
    scale, zero_point = quantizer.grid().scale, quantizer.grid().zero_point
    torch.testing.assert_close(scale, torch.tensor([6.0 / (7 if symmetric else 15)]))
    assert zero_point.item() == 0


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_training_gives_what_inference_gives(symmetric: bool, dtype: torch.dtype) -> None:
    x = (torch.randn(500) * 8).to(dtype)
    quantizer = learning("pact", "A", x, bits=4, symmetric=symmetric)
    trained = quantizer(x)
    with torch.no_grad():
        torch.testing.assert_close(quantizer(x), trained.detach(), rtol=0, atol=0)
    assert trained.dtype == dtype


@pytest.mark.parametrize("symmetric", [False, True])
def test_gradients(symmetric: bool) -> None:
    x = (torch.randn(2, 3, 100) * 8).requires_grad_()
    quantizer = learning("pact", "A", x.detach(), bits=4, symmetric=symmetric)
    assert isinstance(quantizer, PACT)
    weights = torch.linspace(-1, 2, 600).view(2, 3, 100)
    (quantizer(x) * weights).sum().backward()
    lower = -10.0 if symmetric else 0.0
    inside = (x.detach() < 10) & (x.detach() > lower)
    assert x.grad is not None and quantizer.alpha.grad is not None
    assert torch.equal(x.grad, torch.where(inside, weights, 0.0))
    expected = weights[x.detach() >= 10].sum() - (weights[x.detach() <= lower].sum() if symmetric else 0)
    torch.testing.assert_close(quantizer.alpha.grad, expected[None])


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_gradient_of_alpha_is_a_finite_difference_where_nothing_is_rounded(symmetric: bool) -> None:
    x = torch.tensor([11.0, 30.0, 12.0, -40.0, -11.0], dtype=torch.float64)
    quantizer = learning("pact", "A", x, bits=4, symmetric=symmetric)
    assert isinstance(quantizer, PACT)
    weights = torch.tensor([1.0, 2.0, -0.5, 3.0, 0.25], dtype=torch.float64)
    (quantizer(x) * weights).sum().backward()
    found = slope(quantizer, x, quantizer.alpha, weights, by=1e-2)
    assert quantizer.alpha.grad is not None
    torch.testing.assert_close(quantizer.alpha.grad.double(), found[None], rtol=1e-4, atol=1e-4)


def test_nan_is_not_clipped_away() -> None:
    quantizer = learning("pact", "A", torch.rand(5))
    x = torch.tensor([float("nan"), 1.0])
    assert quantizer(x).isnan().tolist() == [True, False]
    with torch.no_grad():
        assert quantizer(x).isnan().tolist() == [True, False]


def test_regularization_is_the_square_of_alpha() -> None:
    quantizer = learning("pact", "A", torch.rand(5))
    assert isinstance(quantizer, PACT)
    quantizer.regularization().backward()
    assert quantizer.regularization().item() == 100 and quantizer.alpha.grad is not None
    assert quantizer.alpha.grad.item() == 20
