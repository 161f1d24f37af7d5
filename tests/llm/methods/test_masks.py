"""Which weights are kept."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.masks import Sparsity, keep_largest
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics


def test_a_part_of_each_row_or_n_of_every_m() -> None:
    scores = torch.randn(6, 24)
    assert keep_largest(scores, Sparsity(0.75)).sum(1).tolist() == [6] * 6
    kept = keep_largest(scores, Sparsity(0.5, 2, 4))
    assert (kept.reshape(-1, 4).sum(1) == 2).all()
    assert scores.reshape(-1, 4).sort(1).values[:, 2:].sum() == pytest.approx(
        float(scores[kept].sum()), rel=1e-5
    )


def test_channels_that_cannot_be_cut_are_refused() -> None:
    half, weight = Sparsity(0.5, 2, 4), torch.zeros(2, 10)
    with pytest.raises(SparsebitError, match="10 input channels cannot be divided into groups of 4"):
        keep_largest(weight, half)
    statistics = InputStatistics.empty(10)
    statistics.update(torch.randn(40, 10))
    for act_order in (True, False):
        with pytest.raises(SparsebitError, match="10 input channels cannot be divided into groups of 4"):
            Gptq(act_order=act_order).solve(weight, statistics, WeightSpec(group_size=None, sparsity=half))
