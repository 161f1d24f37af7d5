"""Pieces of results that several commands show."""

from __future__ import annotations

import argparse
import importlib.util

from sparsebit.cli.command import UsageError
from sparsebit.errors import missing_package
from sparsebit.storage import require_file


def require_report(arguments: argparse.Namespace) -> None:
    """Make sure that what --report asks for can be written, before any work."""
    if arguments.report is None:
        return
    if importlib.util.find_spec("jinja2") is None:
        raise missing_package("jinja2", "a report", extra="report")
    require_file(arguments.report)
    if arguments.report.absolute() == arguments.output.absolute():
        raise UsageError(f"--report and --output both name {arguments.report}")


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
