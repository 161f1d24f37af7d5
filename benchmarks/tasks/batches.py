"""Cutting samples into batches, and choosing few of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from torch import Tensor

from benchmarks.tasks.task import Call

T = TypeVar("T")


def image_calls(
    images: Tensor, normalize: Callable[[Tensor], Tensor], batch: int
) -> list[Callable[[], Call]]:
    """One call with one normalized image tensor per batch; normalizing waits until the call is made."""

    def call(start: int) -> Call:
        return (normalize(images[start : start + batch]),), {}

    return [partial(call, start) for start in range(0, len(images), batch)]


def spread(items: Sequence[T], count: int) -> tuple[T, ...]:
    """``count`` of the items at even distances, in order; all of them where there are no more."""
    count = min(count, len(items))
    return tuple(items[index * len(items) // count] for index in range(count))
