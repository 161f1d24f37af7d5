"""Announce that a parameter was replaced, so that data kept about the old one can be moved to the new one.

Folding a batch norm, for example, creates new parameters. The code that makes one announces it here and need
not know the listeners: pruning, for example, holds some places of a weight at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T", bound=Tensor)
Follower = Callable[[Tensor, Tensor], None]
_FOLLOWERS: list[Follower] = []


def follow_replacements(follower: Follower) -> None:
    """Call ``follower(old, new)`` for every parameter that replaces another."""
    _FOLLOWERS.append(follower)


def announce_replacement(old: Tensor | None, new: T) -> T:
    """Announce that ``new`` takes the place of ``old``, and return it.

    Example:
        >>> import torch
        >>> seen = []
        >>> follow_replacements(lambda old, new: seen.append((old.tolist(), new.tolist())))
        >>> _ = announce_replacement(torch.zeros(1), torch.ones(1))
        >>> _FOLLOWERS.pop() and seen
        [([0.0], [1.0])]
    """
    if old is not None and old is not new:
        for follower in _FOLLOWERS:
            follower(old, new)
    return new
