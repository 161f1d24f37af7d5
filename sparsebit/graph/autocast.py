"""Blocks of ``torch.autocast`` that the caller is in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_KINDS = ("cpu", "cuda")


def autocast_is_on() -> bool:
    """Whether the caller is inside ``torch.autocast``."""
    return any(map(torch.is_autocast_enabled, _KINDS))


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the dtypes of the tensors, whatever the caller's block asks for.

    Example:
        >>> with torch.autocast("cpu"), without_autocast():
        ...     autocast_is_on()
        False
    """
    with contextlib.ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, _KINDS):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
