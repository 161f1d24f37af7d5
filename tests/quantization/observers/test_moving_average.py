from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparsebit.numerics import CodeType
from sparsebit.quantization.observers import MovingAverage, Range
from tests.quantization.observers.data import feed


def reference(x: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """Sample after sample, in float64."""
    samples = x.double().unbind(1)
    lo, hi = samples[0].amin(1), samples[0].amax(1)
    for sample in samples[1:]:
        lo, hi = ratio * lo + (1 - ratio) * sample.amin(1), ratio * hi + (1 - ratio) * sample.amax(1)
    return lo.clamp(max=0), hi.clamp(min=0)


def finish(observer: MovingAverage, batches: list[Tensor]) -> Range:
    return observer.finish(feed(observer, batches), CodeType.of())


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
def test_it_is_the_average_over_samples_whatever_the_batch_size(ratio: float, batch_size: int) -> None:
    x = torch.randn(3, 30, 20, generator=torch.Generator().manual_seed(0)) + 0.5
    found = finish(MovingAverage(ema_ratio=ratio), list(x.split(batch_size, dim=1)))
    for end, expected in zip(found, reference(x, ratio), strict=True):
        torch.testing.assert_close(end.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_order_of_samples_matters() -> None:
    x = torch.tensor([[[1.0], [9.0]]])
    assert finish(MovingAverage(), [x]).hi.item() == pytest.approx(1.8)
    assert finish(MovingAverage(), [x.flip(1)]).hi.item() == pytest.approx(8.2)


def test_merging_continues_with_the_second() -> None:
    x = torch.randn(2, 40, 5, generator=torch.Generator().manual_seed(0))
    observer = MovingAverage()
    parts = [feed(observer, [part]) for part in x.split([1, 30, 9], dim=1)]
    left = observer.merge(observer.merge(parts[0], parts[1]), parts[2])
    right = observer.merge(parts[0], observer.merge(parts[1], parts[2]))
    for a, b, c in zip(left, right, feed(observer, [x]), strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)


def test_rows_without_samples_are_one_sample() -> None:
    x = torch.tensor([[1.0, 5.0]])
    assert finish(MovingAverage(), [x, x * 2]).hi.item() == pytest.approx(0.9 * 5 + 0.1 * 10)


def test_a_long_stream_does_not_drift() -> None:
    x = torch.full((1, 1000, 1), 3.0)
    assert finish(MovingAverage(), [x] * 20).hi.item() == pytest.approx(3.0)
