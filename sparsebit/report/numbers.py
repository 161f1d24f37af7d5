"""Numbers in readable form."""

from __future__ import annotations

from sparsebit.display import short_bytes
from sparsebit.report.content import Measure


def quantity(value: float, unit: str) -> str:
    """A number with its unit.

    Example:
        >>> quantity(0.9949, "share"), quantity(0.00123, "seconds"), quantity(302_000, "bytes")
        ('99.49 %', '1.23 ms', '302 kB')
    """
    if unit == "share":
        return f"{100 * value:.2f} %"
    if unit == "bytes":
        return short_bytes(round(value))
    if unit == "seconds":
        return (
            f"{value:.3g} s"
            if value >= 1
            else f"{1e3 * value:.3g} ms"
            if value >= 1e-3
            else f"{1e6 * value:.0f} µs"
        )
    return f"{value:.4g}"


def change(measure: Measure) -> str:
    """The change of a number, in words.

    Example:
        >>> change(Measure(name="size", before=4e6, after=1e6, unit="bytes"))
        '4.0× smaller'
    """
    if measure.better == "higher":
        points = measure.after - measure.before
        return f"{100 * points:+.2f} points" if measure.unit == "share" else f"{points:+.4g}"
    better, worse = ("faster", "slower") if measure.unit == "seconds" else ("smaller", "larger")
    if measure.ratio >= 1:
        return f"{measure.ratio:.1f}× {better}"
    return f"{1 / measure.ratio:.1f}× {worse}" if measure.ratio else ""


def grade(value: float | None) -> str:
    """The grade of an SQNR, as the name of a colour: above 30 dB errors are hard to notice, below 15 dB easy."""
    if value is None:
        return "none"
    return "good" if value >= 30 else "fair" if value >= 15 else "bad"
