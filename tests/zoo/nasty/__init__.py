"""Little models that each do one thing a graph front-end may get wrong."""

from __future__ import annotations

from . import inplace, mode, movement, ownership, refused, sharing, signature, sizes, weights

FILES = (sharing, ownership, inplace, signature, mode, weights, sizes, movement, refused)
ENTRIES = [entry for file in FILES for entry in file.nasty.entries]
