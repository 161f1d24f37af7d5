"""The decorator that turns a nasty little module class into a zoo entry where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from .entry import Call, ZooEntry, floats, zoo_entry

Build = TypeVar("Build", bound=Callable[[], nn.Module])


def vectors(width: int = 6, *more: int) -> Callable[[int], Call]:
    """Inputs of one positional tensor [batch, width, ...]."""
    return lambda batch: ((floats(batch, width, *more),), {})


_VECTORS = vectors()


class Collector:
    """Collects the entries of one file; the name and the notes come from the class."""

    def __init__(self) -> None:
        self.entries: list[ZooEntry] = []

    def __call__(
        self, inputs: Callable[[int], Call] = _VECTORS, *, name: str | None = None, **rest: Any
    ) -> Callable[[Build], Build]:
        """Register the decorated class as ``nasty_<name in snake case>``; other builders need ``name``."""

        def add(build: Build) -> Build:
            title = name or re.sub(r"(?<!^)(?=[A-Z])", "_", build.__name__).lower()
            rest.setdefault("notes", (build.__doc__ or "").split("\n")[0])
            self.entries.append(zoo_entry(f"nasty_{title}", "nasty", build, inputs, **rest))
            return build

        return add
