"""The items of a set that no other item beats in every cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def pareto_front(items: Iterable[T], costs: Callable[[T], tuple[float, ...]]) -> list[T]:
    """The items that no other beats in all costs at once, sorted by their costs; of equal ones, the first.

    Example:
        >>> pareto_front([(2, 8), (1, 9), (3, 8), (4, 5)], costs=lambda pair: pair)
        [(1, 9), (2, 8), (4, 5)]
    """
    kept: list[T] = []
    for item in sorted(items, key=costs):
        if not any(all(a <= b for a, b in zip(costs(other), costs(item), strict=True)) for other in kept):
            kept.append(item)
    return kept
