"""The most memory this process has held since the last reset, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def reset_peak() -> float:
    """Start counting anew; megabytes held now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def peak_mb() -> float:
    """Megabytes held at most since ``reset_peak``."""
    return _status("VmHWM")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))
