"""LSQ: first step sizes, the size of their gradients, and which codes there are."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparsebit.numerics.layout import Layout
from sparsebit.quantization import Quantizer
from sparsebit.quantization.quantizers.lsq import StepSize
from tests.quantization.quantizers.learning import learning


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_first_step_size_of_a_weight(bits: int) -> None:
    x = torch.randn(5, 7, 3, 3)
    quantizer = learning("lsq", "W", x, Layout(kind="channel"), bits=bits, granularity="channel")
    qmax = 2 ** (bits - 1) - 1
    torch.testing.assert_close(quantizer.scale.detach(), 2 * x.abs().mean((1, 2, 3)) / math.sqrt(qmax))
    assert not quantizer.zero_point.any() and quantizer.scale.requires_grad


def test_first_step_size_of_an_activation_is_over_all_batches() -> None:
    x = torch.rand(3, 8, 4)
    whole = learning("lsq", "A", x, bits=4, symmetric=False)
    torch.testing.assert_close(whole.scale.detach(), (2 * x.mean() / math.sqrt(15))[None])
    assert not whole.zero_point.any(), "never negative: all 16 codes are above zero"
    parts = learning("lsq", "A", x[:1], bits=4, symmetric=False)
    parts.reset()
    for part in (x[:1], x[1:]):
        parts.observe(part)
    parts.finish()
    torch.testing.assert_close(parts.scale.detach(), whole.scale.detach())


def test_affine_with_negatives_is_symmetric_whatever_it_is_called() -> None:
    x = torch.randn(200)
    affine, symmetric = (learning("lsq", "A", x, bits=4, symmetric=flag) for flag in (False, True))
    torch.testing.assert_close(affine.scale.detach(), symmetric.scale.detach())
    assert affine.zero_point.item() == 8 and symmetric.zero_point.item() == 0
    # The gradient scale counts qmax from the zero point: 7 in both.
    for own, other in zip(_gradients(affine, x), _gradients(symmetric, x), strict=True):
        torch.testing.assert_close(own, other)


def _gradients(quantizer: Quantizer, x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    y = quantizer(x)
    return (y.detach(), *torch.autograd.grad(y.square().sum(), (x, quantizer.scale)))


@pytest.mark.parametrize(("side", "rows"), [("W", Layout(kind="channel")), ("A", Layout())])
def test_the_gradient_is_divided_by_the_root_of_values_and_codes(side: str, rows: Layout) -> None:
    x = torch.randn(4, 6, 5)
    granularity = rows.kind
    quantizer = learning("lsq", side, x, rows, bits=3, granularity=granularity)  # type: ignore[arg-type]
    quantizer(x).sum().backward()
    shape = (-1, 1, 1) if rows.kind == "channel" else (1, 1, 1)
    v = x / quantizer.scale.detach().reshape(shape)
    clipped = v.round().clamp(-4, 3)
    each = torch.where(v.round() == clipped, v.round() - v, clipped)
    total = each.sum((1, 2)) if rows.kind == "channel" else each.sum()[None]
    count = 30 if rows.kind == "channel" else 120
    assert quantizer.scale.grad is not None
    torch.testing.assert_close(quantizer.scale.grad, total / math.sqrt(count * 3), rtol=1e-4, atol=1e-5)


def test_a_scale_that_crossed_zero_counts_by_its_magnitude() -> None:
    x = torch.randn(50)
    quantizer = learning("lsq", "A", x, bits=4)
    before = quantizer(x).detach()
    quantizer.scale.data.neg_()
    assert torch.equal(quantizer(x).detach(), before)
    with torch.no_grad():
        assert torch.equal(quantizer(x), before)
    assert (quantizer.grid().scale > 0).all()


def test_a_channel_of_zeros_has_a_scale_that_can_learn() -> None:
    x = torch.randn(3, 4)
    x[1] = 0
    quantizer = learning("lsq", "W", x, Layout(kind="channel"), bits=4, granularity="channel")
    quantizer(x).sum().backward()
    assert (quantizer.scale > 0).all() and quantizer.scale.grad is not None
    assert quantizer.scale.grad.isfinite().all()


def test_merging_is_as_if_seen_at_once() -> None:
    observer, x = StepSize(), torch.randn(2, 30)
    parts = [observer.update(observer.init(x), part) for part in x.split(10, dim=1)]
    merged = observer.merge(observer.merge(parts[0], parts[1]), parts[2])
    torch.testing.assert_close(merged, observer.update(observer.init(x), x))


def test_training_and_inference_give_the_same_numbers() -> None:
    x = torch.randn(4, 6, 5, 5)
    for side, rows in (("W", Layout(kind="channel")), ("A", Layout())):
        quantizer = learning("lsq", side, x, rows, bits=4, granularity=rows.kind)  # type: ignore[arg-type]
        trained = quantizer(x).detach()
        with torch.no_grad():
            assert torch.equal(quantizer(x), trained)
