"""Pieces of results that several commands show."""

from __future__ import annotations


def before_and_after(before: float | None, after: float | None) -> tuple[float, float] | None:
    """Both, or nothing."""
    return None if before is None or after is None else (before, after)


def accuracy_rows(accuracy: tuple[float, float] | None) -> list[str]:
    """One line, where it was measured.

    Example:
        >>> accuracy_rows((0.98, 0.975))
        ['accuracy: 98.00 % before, 97.50 % after (-0.50 points)']
    """
    if accuracy is None:
        return []
    before, after = accuracy
    if max(abs(before), abs(after)) > 1:  # a metric of the user's own, which need not be a share
        return [f"metric: {before:.4g} before, {after:.4g} after ({after - before:+.4g})"]
    change = 100 * (after - before)
    return [f"accuracy: {before:.2%} before, {after:.2%} after ({change:+.2f} points)".replace("%", " %")]
