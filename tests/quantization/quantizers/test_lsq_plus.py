"""LSQ+: where it starts, and a zero point that learns."""

from __future__ import annotations

import math

import torch

from sparsebit.numerics.layout import Layout
from tests.quantization.quantizers.learning import learning


def test_weights_start_from_three_standard_deviations() -> None:
    x = torch.randn(5, 7, 3, 3) + torch.arange(5).view(-1, 1, 1, 1)
    quantizer = learning("lsq+", "W", x, Layout(kind="channel"), bits=4, granularity="channel")
    mean, std = x.mean((1, 2, 3)), x.std((1, 2, 3))
    reach = torch.maximum((mean - 3 * std).abs(), (mean + 3 * std).abs())
    torch.testing.assert_close(quantizer.scale.detach(), 2 * reach / 15)
    assert not isinstance(quantizer.zero_point, torch.nn.Parameter) and not quantizer.zero_point.any()


def test_grouped_transposed_weights_have_a_scale_for_each_output() -> None:
    x = torch.randn(4, 3, 2, 2)
    rows = Layout(kind="channel", axes=(1,), groups=2)
    quantizer = learning("lsq+", "W", x, rows, bits=4, granularity="channel")
    assert quantizer.scale.shape == (6,) and quantizer(x).shape == x.shape


def test_one_value_in_a_channel_has_no_spread() -> None:
    quantizer = learning(
        "lsq+",
        "W",
        torch.tensor([[2.0], [-4.0], [0.0]]),
        Layout(kind="channel"),
        bits=4,
        granularity="channel",
    )
    torch.testing.assert_close(quantizer.scale.detach()[:2], torch.tensor([4.0, 8.0]) / 15)
    assert quantizer.scale[2] > 0


def test_activations_start_from_their_observer() -> None:
    x = torch.rand(300) * 3 - 1
    quantizer = learning("lsq+", "A", x, bits=4, symmetric=False, observer="minmax")
    torch.testing.assert_close(quantizer.scale.detach(), ((x.max() - x.min()) / 15)[None])
    assert quantizer.zero_point.item() == torch.round(-x.min() / quantizer.scale.detach()).item()
    assert {name for name, _ in quantizer.named_parameters()} == {"scale", "zero_point"}


def test_gradients_of_scale_and_zero_point() -> None:
    x = (torch.rand(400) * 6 - 2).requires_grad_()
    quantizer = learning("lsq+", "A", x[:200].detach() / 2, bits=4, symmetric=False)
    quantizer.zero_point.data += 0.3  # between two codes while it learns
    y = quantizer(x)
    s, z = quantizer.scale.item(), round(quantizer.zero_point.item())
    assert torch.equal(y.detach(), ((x.detach() / s).round().clamp(0 - z, 15 - z) * s))
    weights = torch.linspace(-1, 1, 400)
    (y * weights).sum().backward()
    v = x.detach() / s
    clipped = v.round().clamp(0 - z, 15 - z)
    outside = v.round() != clipped
    factor = 1 / math.sqrt(400 * 15)
    assert x.grad is not None and quantizer.scale.grad is not None and quantizer.zero_point.grad is not None
    torch.testing.assert_close(x.grad, torch.where(outside, 0.0, weights))
    each = torch.where(outside, clipped, v.round() - v)
    torch.testing.assert_close(quantizer.scale.grad, (each * weights).sum()[None] * factor)
    torch.testing.assert_close(quantizer.zero_point.grad, (-s * weights * outside).sum()[None] * factor)


def test_a_zero_point_that_left_the_codes_is_held_at_the_end() -> None:
    quantizer = learning("lsq+", "A", torch.rand(50), bits=4, symmetric=False)
    quantizer.zero_point.data.fill_(99.7)
    assert quantizer.grid().zero_point.item() == 15
    with torch.no_grad():
        assert quantizer(torch.rand(5)).eq(0).all()
