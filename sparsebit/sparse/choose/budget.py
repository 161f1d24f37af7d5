"""How much is removed, and from which layers: per layer, over all layers together, or until a cost target is met.

Every group of channels is a ladder of widths it may have: rounded, the same in every block, never empty. A choice is
one rung per ladder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.progress import progress
from sparsebit.sparse.choose.masks import count_removed, without_nan

Rungs = dict[str, int]  # of every ladder, by name


@dataclass(frozen=True, eq=False)
class Ladder:
    """The widths that one group may have, from unchanged (rung 0) to narrowest.

    Args:
        name: of the group.
        order: int64 [channels], in the order of removal.
        removed: how many are removed on each rung; starts with 0.
        price: float64 [rungs - 1], the mean score of the channels that are removed on each step; never decreases.
        ratio: the fraction requested to be removed.
        fixed: whether the ratio was set for this group itself, so that a choice over all groups does not change it.
    """

    name: str
    order: Tensor
    removed: tuple[int, ...]
    price: Tensor
    ratio: float
    fixed: bool = False

    @property
    def channels(self) -> int:
        """The width before anything is removed."""
        return len(self.order)

    def kept(self, rung: int) -> Tensor:
        """Bool [channels]: the channels that are kept on a rung."""
        flags = torch.ones(self.channels, dtype=torch.bool)
        flags[self.order[: self.removed[rung]]] = False
        return flags

    def rung_for(self, ratio: float) -> int:
        """The rung whose width is closest to a ratio; the wider of two."""
        asked = count_removed(self.channels, ratio)
        return min(range(len(self.removed)), key=lambda rung: (abs(self.removed[rung] - asked), rung))

    def part(self, rung: int) -> float:
        """The fraction of the channels that is removed on a rung."""
        return self.removed[rung] / self.channels


def make_ladder(
    name: str,
    scores: Tensor,
    *,
    ratio: float,
    multiple: int = 1,
    blocks: Tensor | None = None,
    fixed: bool = False,
) -> Ladder:
    """The ladder of one group.

    Args:
        name: of the group.
        scores: [channels]; the lowest are removed first, and the first among equals.
        ratio: the fraction requested to be removed.
        multiple: the number of channels that stay is a multiple of this.
        blocks: int64 [channels]; every block loses the same number.
        fixed: see ``Ladder``.

    Example:
        >>> ladder = make_ladder("conv", torch.tensor([4.0, 1.0, 3.0, 2.0, 5.0]), ratio=0.5, multiple=2)
        >>> ladder.removed, ladder.kept(2).tolist()
        ((0, 1, 3), [True, False, False, False, True])
    """
    scores = without_nan(scores.detach().to("cpu", torch.float64), name)
    order, together, most = _leaving(scores, blocks)
    total = len(scores)
    removed = (
        0,
        *(n for n in range(together, most + 1, together) if n < total and (total - n) % multiple == 0),
    )
    ordered = scores[order]
    price = [ordered[start:stop].mean() for start, stop in itertools.pairwise(removed)]
    prices = torch.stack(price) if price else torch.zeros(0, dtype=torch.float64)
    return Ladder(name, order, removed, prices, ratio, fixed)


def _leaving(scores: Tensor, blocks: Tensor | None) -> tuple[Tensor, int, int]:
    """The channels in the order of removal, how many are removed together (one per block), and how many can be."""
    order = torch.sort(scores, stable=True).indices
    if blocks is None:
        return order, 1, len(order)
    count = int(blocks.max()) + 1
    place = torch.empty_like(order)  # of a channel inside its block
    for block in range(count):
        inside = order[blocks[order] == block]
        place[inside] = torch.arange(len(inside))
    return torch.argsort(place * count + blocks), count, count * int(torch.bincount(blocks).min())


def choose_by_layer(ladders: Sequence[Ladder]) -> Rungs:
    """Every group by its own ratio."""
    return {ladder.name: ladder.rung_for(ladder.ratio) for ladder in ladders}


Step = tuple[int, int]  # index of a ladder, and the rung below


def steps_by_price(ladders: Sequence[Ladder], most: float) -> list[Step]:
    """Every step of the ladders that are not fixed, the least important first: a choice over all layers together."""
    return sorted(_steps(ladders, most), key=lambda step: (float(ladders[step[0]].price[step[1] - 1]), step))


def steps_by_part(ladders: Sequence[Ladder], most: float) -> list[Step]:
    """Every step of the ladders that are not fixed, the smallest loss first: all layers shrink alike."""
    return sorted(_steps(ladders, most), key=lambda step: (ladders[step[0]].part(step[1]), step))


def _steps(ladders: Sequence[Ladder], most: float) -> Iterator[Step]:
    """The steps that remove at most the fraction ``most`` of every ladder."""
    for index, ladder in enumerate(ladders):
        limit = -1 if ladder.fixed else count_removed(ladder.channels, most)
        yield from ((index, rung) for rung, gone in enumerate(ladder.removed) if 0 < gone <= limit)


def choose_together(ladders: Sequence[Ladder], ratio: float, most: float) -> Rungs:
    """Remove the least important channels of all groups, up to the fraction ``ratio`` of all channels."""
    rungs = _start(ladders)
    left = count_removed(sum(ladder.channels for ladder in ladders if not ladder.fixed), ratio)
    stuck: set[int] = set()  # a ladder whose next step is too long may not skip it
    for index, rung in steps_by_price(ladders, most):
        gone = ladders[index].removed[rung] - ladders[index].removed[rung - 1]
        if index in stuck or gone > left:
            stuck.add(index)
            continue
        rungs[ladders[index].name] = rung
        left -= gone
    return rungs


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The result of a cost target."""

    target: str  # params, macs or latency
    before: float  # of the model before pruning; seconds for latency
    after: float
    wanted: float

    @property
    def met(self) -> bool:
        """Whether the cost was reduced as far as requested."""
        return self.after <= self.wanted

    def __str__(self) -> str:
        unit, scale = (" ms", 1e3) if self.target == "latency" else ("", 1.0)
        form = ".3g" if self.target == "latency" else ",.0f"
        costs = [f"{format(cost * scale, form)}{unit}" for cost in (self.before, self.after, self.wanted)]
        text = f"{self.target}: {costs[0]}, now {costs[1]} ({1 - self.after / self.before:.1%} gone)"
        return text if self.met else f"{text}; the target is {costs[2]}, but nothing more can be removed"


def choose_for_cost(
    ladders: Sequence[Ladder],
    steps: Sequence[Step],
    cost: Callable[[dict[str, Tensor]], float],
    wanted: float,
    *,
    tries: int = 64,
    what: str = "searching for the channels that meet the target",
) -> tuple[Rungs, float]:
    """The fewest ``steps``, in their order, that reduce the cost to ``wanted``; all of them if that is not enough.

    ``cost`` is called about ``tries`` times with the kept channels of every group. It should decrease as more is
    removed. If it does so only roughly (latency), the result was measured twice to be low enough. Returns its cost too.
    """

    def choose(count: int) -> Rungs:
        return _start(ladders) | {ladders[index].name: rung for index, rung in steps[:count]}

    def measure(count: int) -> float:
        rungs = choose(count)
        return cost({ladder.name: ladder.kept(rungs[ladder.name]) for ladder in ladders})

    unpruned = measure(0)
    if unpruned <= wanted:
        return choose(0), unpruned
    short, enough = 0, [len(steps)]  # counts that were sufficient, the smallest last
    for _ in progress(range(tries - 1), what):
        if enough[-1] - short <= 1:
            break
        middle = (short + enough[-1]) // 2
        if measure(middle) <= wanted:
            enough.append(middle)
        else:
            short = middle
    while (found := measure(enough[-1])) > wanted and len(enough) > 1:
        enough.pop()  # the measurement was lucky
    return choose(enough[-1]), found


def _start(ladders: Sequence[Ladder]) -> Rungs:
    """Fixed groups at their own ratio, the rest unchanged."""
    return {ladder.name: ladder.rung_for(ladder.ratio) if ladder.fixed else 0 for ladder in ladders}


def normalize(scores: Tensor, how: str) -> Tensor:
    """Scores of one layer on a scale that layers share; their order does not change.

    Example:
        >>> normalize(torch.tensor([1.0, 3.0]), "mean")
        tensor([0.5000, 1.5000])
    """
    if how == "none":
        return scores
    finite = scores[scores.isfinite()]
    if not len(finite):
        return scores
    sizes = {"mean": finite.mean(), "max": finite.max(), "sum": finite.sum()}
    return scores / sizes[how].clamp(min=torch.finfo(scores.dtype).tiny)
