"""Sums over tokens: the same in one batch and in many."""

from __future__ import annotations

import torch

from sparsebit.llm.weights.statistics import InputStatistics


def test_batches_do_not_matter() -> None:
    x, f = torch.randn(3, 10, 6), torch.randn(3, 10, 6)
    at_once, parts = (InputStatistics.empty(6, shift=True, sizes=True) for _ in range(2))
    at_once.update(x, f)
    parts.update(x[:1], f[:1])
    parts.update(x[1:], f[1:])
    rows, floats = x.reshape(-1, 6), f.reshape(-1, 6)
    for found in (at_once, parts):
        shift = found.mean_shift()
        assert found.tokens == 30 and shift is not None
        assert torch.allclose(found.mean_gram(), rows.T @ rows / 30, atol=1e-5)
        assert torch.allclose(shift, (floats - rows).T @ rows / 30, atol=0.02)  # sums of bfloat16
        assert found.magnitude is not None and found.largest is not None
        assert torch.allclose(found.magnitude, rows.abs().sum(0), atol=1e-4)
        assert torch.equal(found.largest, rows.abs().amax(0))
    assert InputStatistics.empty(6, shift=False).mean_shift() is None
