"""AdaRound: h(V), and weights on the code that was chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.numerics.layout import Layout, spread
from sparsebit.quantization.quantizers import AdaRound
from sparsebit.quantization.quantizers.adaround import inverse_rectified_sigmoid, rectified_sigmoid
from tests.quantization.quantizers.learning import learning

ROWS = [
    Layout(),
    Layout(kind="channel"),
    Layout(kind="channel", axes=(1,)),
    Layout(kind="group", group_size=2),
]


def test_h_reaches_both_ends_and_is_half_at_zero() -> None:
    v = torch.tensor([-20.0, -2.4, 0.0, 2.4, 20.0])
    h = rectified_sigmoid(v)
    assert h[0] == 0 and h[-1] == 1 and h[2] == 0.5
    torch.testing.assert_close(h[1:4], (torch.sigmoid(v[1:4]) * 1.2 - 0.1).clamp(0, 1))


@given(st.floats(1e-4, 1 - 1e-4))
def test_v_gives_back_the_fraction_it_was_made_from(fraction: float) -> None:
    h = torch.tensor([fraction], dtype=torch.float64)
    torch.testing.assert_close(rectified_sigmoid(inverse_rectified_sigmoid(h)), h)
    assert torch.autograd.gradcheck(rectified_sigmoid, (inverse_rectified_sigmoid(h).requires_grad_(),))


def chosen(x: torch.Tensor, rows: Layout, symmetric: bool) -> AdaRound:
    quantizer = learning(
        "adaround",
        "W",
        x,
        rows,
        bits=4,
        granularity=rows.kind,
        group_size=rows.group_size,
        symmetric=symmetric,
    )
    assert isinstance(quantizer, AdaRound)
    return quantizer


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{rows.kind}{rows.axes}")
def test_until_it_was_decided_it_rounds_to_the_nearest(rows: Layout, symmetric: bool) -> None:
    x = torch.randn(6, 4, 3)
    quantizer = chosen(x, rows, symmetric)
    scale, zero_point = (spread(v, x.shape, rows) for v in (quantizer.scale, quantizer.zero_point))
    codes = ((x / scale).round() + zero_point).clamp(quantizer.code.low, quantizer.code.high)
    torch.testing.assert_close(quantizer(x), (codes - zero_point) * scale, rtol=0, atol=0)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{rows.kind}{rows.axes}")
def test_the_codes_are_floor_plus_choice(rows: Layout, symmetric: bool) -> None:
    """Those that an exporter takes of the prepared weight, too."""
    x = torch.randn(6, 4, 3) * 3
    quantizer = chosen(x / 2, rows, symmetric)  # so that some are clipped
    quantizer.up = torch.rand(x.shape) < 0.5
    scale, zero_point = (spread(v, x.shape, rows) for v in (quantizer.scale, quantizer.zero_point))
    codes = ((x / scale).floor() + quantizer.up + zero_point).clamp(quantizer.code.low, quantizer.code.high)
    assert torch.equal(quantizer(x), (codes - zero_point) * scale)
    assert torch.equal(quantizer.grid().codes(quantizer.prepare(x)).float(), codes)


def test_gradients_pass_straight_through_so_that_training_can_go_on() -> None:
    x = torch.randn(6, 4).requires_grad_()
    quantizer = chosen(x.detach(), Layout(), True)
    quantizer.up = torch.rand(x.shape) < 0.5
    with torch.no_grad():
        expected = quantizer(x)
    y = quantizer(x)
    y.sum().backward()
    assert torch.equal(y.detach(), expected) and x.grad is not None
    assert x.grad.eq(1).float().mean() > 0.8


def test_half_precision_makes_the_same_choice() -> None:
    x = torch.randn(6, 40).bfloat16()
    quantizer = chosen(x.float(), Layout(kind="channel"), True)
    quantizer.up = torch.rand(x.shape) < 0.5
    codes = [quantizer.grid().codes(quantizer.prepare(w)) for w in (x, x.float())]
    assert torch.equal(*codes)


def test_reset_forgets_the_choice() -> None:
    x = torch.randn(6, 4)
    quantizer = chosen(x, Layout(), True)
    quantizer.up = torch.ones(x.shape, dtype=torch.bool)
    quantizer.reset()
    assert quantizer.up.numel() == 0 and not quantizer.calibrated
