"""A bar chart as SVG text, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.peers.row import Column, Row

BAR, GAP, LABEL, WIDTH, NUMBER = 16, 6, 250, 420, 60
OURS, THEIRS, TEXT = "#2f7ed8", "#9aa5b1", "#6b7280"


def draw_bars(title: str, column: Column, rows: Sequence[Row]) -> str:
    """One bar per row that has the value, grouped by model and setting; empty text where no row has it."""
    measured = [row for row in rows if row.measures.get(column.key) is not None]
    if not measured:
        return ""
    groups: dict[str, list[Row]] = {}
    for row in measured:
        groups.setdefault(f"{row.model}, {row.setting.partition(',')[0]}", []).append(row)
    largest = max(_value(row, column) for row in measured) or 1.0
    better = {"higher": "longer is better", "lower": "shorter is better", "": ""}[column.better]
    parts, y = [_text(0, 18, f"{title}: {column.heading}, {better}", 14)], 30
    for name, members in groups.items():
        y += 14
        parts.append(_text(0, y, name, 12))
        y += 8
        for row in members:
            length = max(WIDTH * _value(row, column) / largest, 1.0)
            color = OURS if row.peer == "sparsebit" else THEIRS
            more = row.setting.partition(",")[2]
            parts.append(_text(8, y + BAR - 4, f"{row.peer}{more and ' ·' + more}", 11))
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{color}"/>'
            )
            parts.append(
                _text(LABEL + length + 5, y + BAR - 4, f"{_value(row, column):.{column.digits}f}", 11)
            )
            y += BAR + GAP
    width = LABEL + WIDTH + NUMBER
    box = f'viewBox="0 0 {width} {y + 8}" width="{width}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif">'
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>", ""])


def _value(row: Row, column: Column) -> float:
    value = row.measures[column.key]
    assert value is not None
    return value


def _text(x: float, y: float, words: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{TEXT}">{escape(words)}</text>'
