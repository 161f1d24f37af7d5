"""Checks of numeric arguments; an error names the argument and what was expected."""

from __future__ import annotations

import math

from sparsebit.errors import SparsebitError


def require_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless an argument is an integer of at least ``least``.

    Example:
        >>> require_count("steps", 100)
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SparsebitError(f"{name}: expected a whole number, at least {least}", got=repr(value))


def require_part(name: str, value: object) -> None:
    """Raise unless an argument is a fraction of at least 0 and less than 1.

    Example:
        >>> require_part("hidden", 0.25)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SparsebitError(f"{name}: expected a number, at least 0 and less than 1", got=repr(value))


def require_positive(name: str, value: object) -> None:
    """Raise unless an argument is a finite number above zero.

    Example:
        >>> require_positive("rate", 2e-4)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SparsebitError(f"{name}: expected a number above 0", got=repr(value))
