from __future__ import annotations

import torch

from sparsebit.quantization.observers import MinMax
from tests.quantization.observers.data import draw, measure


def test_the_range_is_that_of_the_data() -> None:
    x = draw("shifted").view(4, -1)
    lo, hi = measure(MinMax(), x)
    assert lo.equal(x.amin(1).clamp(max=0))
    assert hi.equal(x.amax(1))


def test_one_outlier_sets_it() -> None:
    assert measure(MinMax(), torch.tensor([[0.0, 1.0, 1e6]])).hi.tolist() == [1e6]
