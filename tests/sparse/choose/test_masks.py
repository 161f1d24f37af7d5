"""Masks: counts are exact whatever the scores, and every mask is the best one of its kind."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.sparse.choose.masks import (
    MatrixBlocks,
    ScoreError,
    count_removed,
    keep_highest,
    keep_highest_together,
    keep_n_of_m,
)

# few different values, so that there are ties
SCORES = st.lists(st.integers(0, 3).map(float), min_size=1, max_size=40).map(torch.tensor)


@given(st.integers(0, 10**6), st.integers(0, 100))
def test_a_percentage_is_counted_as_people_do(total: int, percent: int) -> None:
    assert count_removed(total, percent / 100) == total * percent // 100


@given(SCORES, st.integers(0, 40))
def test_exactly_as_many_go_and_they_are_the_lowest(scores: Tensor, removed: int) -> None:
    removed = min(removed, len(scores))
    kept = keep_highest(scores, removed)
    assert int((~kept).sum()) == removed
    if 0 < removed < len(scores):
        assert scores[~kept].max() <= scores[kept].min()
        tied = scores == scores[~kept].max()
        gone = (~kept)[tied]
        assert bool((gone[:-1] >= gone[1:]).all())  # of equals the first go


def test_half_of_equal_numbers_is_half() -> None:
    assert int(keep_highest(torch.ones(8, 8), 32).sum()) == 32


@given(st.lists(SCORES, min_size=1, max_size=4), st.integers(0, 200))
def test_several_tensors_are_counted_as_one(tensors: list[Tensor], removed: int) -> None:
    named = {str(index): tensor for index, tensor in enumerate(tensors)}
    together = keep_highest(torch.cat(tensors), removed)
    kept = keep_highest_together(named, removed)
    assert torch.equal(torch.cat(list(kept.values())), together)
    assert keep_highest_together({}, 3) == {}


@given(
    st.integers(1, 3),
    st.integers(1, 11),
    st.sampled_from([(1, 2), (2, 4), (4, 8), (3, 5)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_n_of_every_m_and_no_better_choice(
    rows: int, columns: int, nm: tuple[int, int], turned: bool, seed: int
) -> None:
    n, m = nm
    scores = torch.randint(0, 4, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
    given_scores, axis = (scores.T, 0) if turned else (scores, 1)
    kept = keep_n_of_m(given_scores, n, m, axis)
    kept = kept.T if turned else kept
    for row, start in itertools.product(range(rows), range(0, columns, m)):
        run, chosen = scores[row, start : start + m], kept[row, start : start + m]
        assert int(chosen.sum()) == min(n, len(run))
        assert run[chosen].sum() == run.topk(min(n, len(run))).values.sum()


def test_neighbours_are_input_channels_of_one_kernel_position() -> None:
    weight = torch.rand(2, 8, 3, 3)
    kept = keep_n_of_m(weight, 2, 4, axis=1)
    assert torch.equal(kept.view(2, 2, 4, 3, 3).sum(2), torch.full((2, 2, 3, 3), 2))


def test_of_equals_the_first_go_in_n_of_m_too() -> None:
    assert keep_n_of_m(torch.ones(1, 4), 2, 4, 1).tolist() == [[False, False, True, True]]


@given(
    st.sampled_from([(5, 7), (4, 4), (3, 2, 2), (4, 6, 3, 3)]),
    st.sampled_from([(1, 4), (2, 2), (4, 4)]),
    st.booleans(),
    st.integers(0, 20),
)
def test_blocks_go_as_a_whole(
    shape: tuple[int, ...], block: tuple[int, int], turned: bool, removed: int
) -> None:
    blocks = MatrixBlocks(shape, (1, 0) if turned else (0, 1), block)
    weight = torch.rand(shape)
    rows = blocks.to_rows(weight)
    assert rows.sum().item() == pytest.approx(weight.sum().item(), rel=1e-5)
    assert int(blocks.sizes().sum()) == weight.numel()
    kept = keep_highest(rows.sum(1), min(removed, len(rows)))
    mask = blocks.to_mask(kept)
    assert mask.shape == weight.shape
    assert torch.equal(blocks.to_rows(mask.float()).sum(1), torch.where(kept, blocks.sizes(), 0.0))


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ScoreError, match="1 NaN among 3"):
        keep_highest(torch.tensor([1.0, float("nan"), 2.0]), 1)
    with pytest.raises(ScoreError):
        keep_n_of_m(torch.tensor([[1.0, float("nan")]]), 1, 2, 1)
