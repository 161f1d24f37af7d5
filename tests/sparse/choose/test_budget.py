"""Budgets: exact counts, multiples, blocks, never empty, and a cost that is met with as little loss as possible."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.sparse.choose.budget import (
    Ladder,
    choose_by_layer,
    choose_for_cost,
    choose_together,
    make_ladder,
    normalize,
    steps_by_part,
    steps_by_price,
)

SCORES = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=48).map(torch.tensor)


@given(SCORES, st.floats(0, 0.99), st.sampled_from([1, 2, 4, 8]))
def test_a_width_is_a_multiple_or_whole_and_never_empty(scores: Tensor, ratio: float, multiple: int) -> None:
    ladder = make_ladder("g", scores, ratio=ratio, multiple=multiple)
    width = int(ladder.kept(ladder.rung_for(ratio)).sum())
    assert width == len(scores) or (width % multiple == 0 and width > 0)
    wish = len(scores) - math.floor(round(len(scores) * ratio, 6))
    allowed = [len(scores), *range(multiple, len(scores), multiple)]
    assert abs(width - wish) == min(abs(other - wish) for other in allowed)


@given(SCORES, st.data())
def test_the_lowest_leave_first(scores: Tensor, data: st.DataObject) -> None:
    ladder = make_ladder("g", scores, ratio=0.5)
    rung = data.draw(st.integers(0, len(ladder.removed) - 1))
    kept = ladder.kept(rung)
    assert int((~kept).sum()) == ladder.removed[rung]
    if not bool(kept.all()):
        assert scores[~kept].max() <= scores[kept].min()
    assert bool((ladder.price.diff() >= 0).all())


def test_half_of_64_is_32_ties_included() -> None:
    ladder = make_ladder("g", torch.ones(64), ratio=0.5)
    assert int(ladder.kept(ladder.rung_for(0.5)).sum()) == 32


def test_blocks_of_different_sizes_lose_alike() -> None:
    """Padding in a group of a convolution: it fills a block, and no layer makes it."""
    block = torch.tensor([0, 0, 0, 1, 1])
    ladder = make_ladder("g", torch.tensor([5.0, 1.0, 2.0, 4.0, 3.0]), ratio=0.5, blocks=block)
    assert ladder.removed == (0, 2, 4)
    assert ladder.kept(1).tolist() == [True, False, True, True, False]
    assert ladder.kept(2).tolist() == [True, False, False, False, False]


@given(st.integers(1, 5), st.integers(1, 8), st.floats(0, 0.95), st.integers(0, 99))
def test_every_block_keeps_the_same_number(blocks: int, size: int, ratio: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(blocks * size, generator=generator)
    block = torch.arange(blocks).repeat(size)[torch.randperm(blocks * size, generator=generator)]
    ladder = make_ladder("g", scores, ratio=ratio, blocks=block)
    kept = ladder.kept(ladder.rung_for(ratio))
    counts = {int(kept[block == one].sum()) for one in range(blocks)}
    assert len(counts) == 1
    assert counts.pop() >= 1
    for one in range(blocks):
        inside = block == one
        if not bool(kept[inside].all()):
            assert scores[inside & ~kept].max() <= scores[inside & kept].min()


def ladders(*sizes: int, multiple: int = 1) -> list[Ladder]:
    generator = torch.Generator().manual_seed(0)
    return [
        make_ladder(str(i), torch.rand(size, generator=generator), ratio=0.5, multiple=multiple)
        for i, size in enumerate(sizes)
    ]


@given(st.lists(st.integers(2, 30), min_size=1, max_size=5), st.floats(0, 0.8))
def test_together_exactly_the_part_goes_and_it_is_the_cheapest(sizes: list[int], ratio: float) -> None:
    found = ladders(*sizes)
    rungs = choose_together(found, ratio, most=1.0)
    gone = sum(ladder.removed[rungs[ladder.name]] for ladder in found)
    most = sum(size - 1 for size in sizes)  # one unit stays in each
    assert gone == min(math.floor(round(sum(sizes) * ratio, 6)), most)
    assert all(bool(ladder.kept(rungs[ladder.name]).any()) for ladder in found)
    if gone < most:
        last = max(
            (float(ladder.price[rungs[ladder.name] - 1]) for ladder in found if rungs[ladder.name]), default=0
        )
        following = [ladder.price[rungs[ladder.name] :] for ladder in found]
        assert all(last <= float(prices[0]) for prices in following if len(prices))


def test_no_layer_loses_more_than_it_may() -> None:
    weak = make_ladder("weak", torch.zeros(10), ratio=0.5)
    strong = make_ladder("strong", torch.ones(10), ratio=0.5)
    rungs = choose_together([weak, strong], 0.5, most=0.7)
    assert (weak.removed[rungs["weak"]], strong.removed[rungs["strong"]]) == (7, 3)


def test_a_layer_with_a_ratio_of_its_own_is_left_out_of_the_rest() -> None:
    own = make_ladder("own", torch.zeros(10), ratio=0.2, fixed=True)
    other = make_ladder("other", torch.ones(10), ratio=0.5)
    rungs = choose_together([own, other], 0.5, most=0.9)
    assert (own.removed[rungs["own"]], other.removed[rungs["other"]]) == (2, 5)
    assert choose_by_layer([own, other]) == {"own": 2, "other": 5}


@pytest.mark.parametrize("order", [steps_by_price, steps_by_part])
@given(sizes=st.lists(st.integers(2, 30), min_size=1, max_size=5), part=st.floats(0.3, 1))
def test_a_cost_is_met_with_as_few_steps_as_possible(order: object, sizes: list[int], part: float) -> None:
    found = ladders(*sizes)
    steps = order(found, 1.0)  # type: ignore[operator]

    def cost(kept: dict[str, Tensor]) -> float:
        return float(sum(flags.sum() ** 2 for flags in kept.values()))

    target = part * sum(size**2 for size in sizes)
    rungs, seen = choose_for_cost(found, steps, cost, target)
    narrowest = float(len(sizes))

    def at(count: int) -> float:
        chosen = {ladder.name: 0 for ladder in found} | {found[i].name: rung for i, rung in steps[:count]}
        return cost({ladder.name: ladder.kept(chosen[ladder.name]) for ladder in found})

    reached = cost({ladder.name: ladder.kept(rungs[ladder.name]) for ladder in found})
    assert reached == seen <= max(target, narrowest)
    fewest = next((count for count in range(len(steps) + 1) if at(count) <= target), len(steps))
    assert reached == at(fewest)


def test_a_cost_is_asked_no_more_often_than_allowed() -> None:
    asked: list[float] = []
    found = ladders(64, 64)

    def cost(kept: dict[str, Tensor]) -> float:
        asked.append(float(sum(flags.sum() for flags in kept.values())))
        return asked[-1]

    rungs, _ = choose_for_cost(found, steps_by_part(found, 0.9), cost, 64, tries=5)
    assert len(asked) <= 5 + 1  # the last is seen twice
    assert sum(int(ladder.kept(rungs[ladder.name]).sum()) for ladder in found) <= 64


def test_a_cost_that_was_low_by_luck_is_not_taken() -> None:
    found = ladders(64, 64)
    steps = steps_by_part(found, 0.9)
    asked: list[float] = []

    def cost(kept: dict[str, Tensor]) -> float:
        true = float(sum(flags.sum() for flags in kept.values()))
        asked.append(true)
        return true / 2 if len(asked) == 3 else true  # one measurement is far too low

    rungs, seen = choose_for_cost(found, steps, cost, 64)
    left = sum(int(ladder.kept(rungs[ladder.name]).sum()) for ladder in found)
    assert left == seen <= 64


@pytest.mark.parametrize("how", ["none", "mean", "max", "sum"])
def test_one_scale_keeps_the_order(how: str) -> None:
    scores = torch.tensor([3.0, -math.inf, 1.0, 2.0])
    found = normalize(scores, how)
    assert torch.equal(found.argsort(), scores.argsort())
    assert torch.equal(normalize(10 * scores, how), found) or how == "none"
    assert torch.equal(normalize(torch.zeros(2), how), torch.zeros(2))
