"""A parameter made from another one, announced: what somebody keeps about the old one can go on with the new one.

Folding a batch norm, or taking a model over, makes new parameters. Who makes one says so here, and need not know who
listens: that some places of a weight are held at zero, for example, is nothing a pass should know of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T", bound=Tensor)
Follower = Callable[[Tensor, Tensor], None]
_FOLLOWERS: list[Follower] = []


def follow_parameters(follower: Follower) -> None:
    """Have ``follower(old, new)`` called for every parameter that takes the place of another."""
    _FOLLOWERS.append(follower)


def succeed(old: Tensor | None, new: T) -> T:
    """Announce that ``new`` takes the place of ``old``, and return it.

    Example:
        >>> import torch
        >>> seen = []
        >>> follow_parameters(lambda old, new: seen.append((old.tolist(), new.tolist())))
        >>> _ = succeed(torch.zeros(1), torch.ones(1))
        >>> _FOLLOWERS.pop() and seen
        [([0.0], [1.0])]
    """
    if old is not None and old is not new:
        for follower in _FOLLOWERS:
            follower(old, new)
    return new
