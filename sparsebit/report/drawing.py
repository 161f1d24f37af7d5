"""Pictures as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsebit.report.content import GraphNode, Histogram, ParetoPoint
from sparsebit.report.layout import HEIGHT, WIDTH, Point, place
from sparsebit.report.numbers import decibels, grade

if TYPE_CHECKING:
    from markupsafe import Markup

GRID_LINES = 33  # codes that are drawn at most


def draw_graph(nodes: Sequence[GraphNode]) -> Markup:
    """The graph. Each box is a group with its place; the page's script moves the view and the selection."""
    from markupsafe import Markup

    layout = place([node.inputs for node in nodes])
    parts = [
        Markup(
            '<svg class="graph" viewBox="{} {} {} {}" role="application" tabindex="0" '
            'aria-label="The graph: arrow keys go from operator to operator, plus and minus zoom, 0 shows all, '
            'Enter opens the layer" preserveAspectRatio="xMidYMin meet">'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 8 4 0 8z" class="tip"/></marker></defs>'
        ).format(-12, -12, layout.width + 24, layout.height + 24)
    ]
    parts += [_edge(line) for line in layout.lines]
    for index, node in enumerate(nodes):
        parts.append(_box(index, node, layout.corners[index]))
    return Markup("").join([*parts, Markup("</svg>")])


def _edge(points: Sequence[Point]) -> Markup:
    """A smooth line: straight beside boxes, bent between the rows."""
    from markupsafe import Markup

    path = f"M{points[0].x:.0f} {points[0].y:.0f}"
    for index in range(0, len(points) - 1, 2):
        (x1, y1), (x2, y2) = points[index], points[index + 1]
        bend = (y2 - y1) / 2
        path += f"C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
        if index + 2 < len(points):
            path += f"V{points[index + 2].y:.0f}"
    return Markup('<path class="edge" d="{}" marker-end="url(#tip)"/>').format(path)


def _box(index: int, node: GraphNode, corner: tuple[float, float]) -> Markup:
    from markupsafe import Markup

    label = ", ".join(part for part in (node.name, node.op, node.bits, node.shape) if part)
    if node.sqnr is not None:
        label += f", SQNR {decibels(node.sqnr)}"
    second = " · ".join(part for part in (node.op if node.kind == "op" else node.kind, node.bits) if part)
    third = decibels(node.sqnr) if node.sqnr is not None else node.shape
    return Markup(
        '<g class="node {kind} {grade}" id="node-{index}" data-index="{index}" data-inputs="{inputs}" '
        'data-layer="{layer}" role="img" aria-label="{label}" transform="translate({x} {y})"><title>{label}</title>'
        '<rect width="{w}" height="{h}" rx="7"/>'
        '<text x="10" y="16" class="name">{name}</text><text x="10" y="31">{second}</text>'
        '<text x="10" y="45" class="small">{third}</text></g>'
    ).format(
        kind=node.kind,
        grade=grade(node.sqnr),
        index=index,
        inputs=" ".join(map(str, node.inputs)),
        layer=node.layer or "",
        label=label,
        x=round(corner[0], 1),
        y=round(corner[1], 1),
        w=WIDTH,
        h=HEIGHT,
        name=_short(node.name, 24),
        second=_short(second, 26),
        third=third,
    )


def draw_histogram(shown: Histogram) -> Markup:
    """Bars along the codes, the grid as lines under them, and what is clipped in another colour."""
    from markupsafe import Markup

    width, height, foot = 340.0, 110.0, 22.0
    scale, top = width / (shown.hi - shown.lo), max(shown.counts, default=0) or 1
    step = width / max(len(shown.counts), 1)
    inside: list[str] = []
    outside: list[str] = []
    for index, count in enumerate(shown.counts):
        if count:
            # The root keeps rare codes visible beside common ones.
            tall = max(1.0, math.sqrt(count / top) * (height - 6))
            middle = shown.lo + (index + 0.5) / len(shown.counts) * (shown.hi - shown.lo)
            bar = f"M{index * step:.1f} {height:.1f}v{-tall:.1f}h{step * 0.92:.2f}v{tall:.1f}z"
            (inside if shown.qmin - 0.5 <= middle <= shown.qmax + 0.5 else outside).append(bar)
    every = -(-(shown.qmax - shown.qmin + 1) // GRID_LINES)
    codes = range(shown.qmin, shown.qmax + 1, every)
    lines = "".join(f"M{(code - shown.lo) * scale:.1f} 0v{height + 5:.0f}" for code in codes)
    ends = "".join(
        f"M{(code - shown.lo) * scale:.1f} 0v{height + 7:.0f}" for code in (shown.qmin, shown.qmax)
    )
    label = f"{shown.name}: {sum(shown.counts)} numbers on the {shown.codes} grid from {shown.qmin} to {shown.qmax}"
    caption = "" if every == 1 else f"every {every}th of {shown.qmax - shown.qmin + 1} codes is drawn"
    text = Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>')
    return Markup(
        '<svg class="histogram" viewBox="-8 -2 {w} {h}" role="img" aria-label="{label}"><title>{label}</title>'
        '<path class="grid" d="{lines}"/><path class="bars" d="{inside}"/><path class="clipped" d="{outside}"/>'
        '<path class="ends" d="{ends}"/>{texts}</svg>'
    ).format(
        w=width + 16,
        h=height + foot,
        label=label,
        lines=lines,
        inside="".join(inside),
        outside="".join(outside),
        ends=ends,
        texts=Markup("").join(
            [
                text.format(round((shown.qmin - shown.lo) * scale, 1), height + 18, "start", shown.qmin),
                text.format(round((shown.qmax - shown.lo) * scale, 1), height + 18, "end", shown.qmax),
                text.format(width / 2, height + 18, "middle", caption),
            ]
        ),
    )


def draw_pareto(points: Sequence[ParetoPoint], axes: tuple[str, str]) -> Markup:
    """Quality against cost: every point, and the line through those that no other beats."""
    from markupsafe import Markup

    width, height, left, foot = 640.0, 320.0, 64.0, 44.0
    x0, x1 = _span([point.cost for point in points])
    y0, y1 = _span([point.quality for point in points])

    def at(point: ParetoPoint) -> tuple[float, float]:
        return (
            left + (point.cost - x0) / (x1 - x0) * (width - left - 16),
            (height - foot) - (point.quality - y0) / (y1 - y0) * (height - foot - 16),
        )

    best = [at(point) for point in front(points)]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in best) if best else ""
    parts = [
        Markup(
            '<svg class="pareto" viewBox="0 0 {} {}" role="img" aria-label="{} against {}, {} points">'
        ).format(width, height, axes[1], axes[0], len(points)),
        Markup('<path class="axis" d="M{l} 8V{b}H{r}"/><path class="front" d="{line}"/>').format(
            l=left, b=height - foot, r=width - 8, line=line
        ),
    ]
    text = Markup('<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>')
    for share in (0.0, 0.5, 1.0):
        x, y = left + share * (width - left - 16), (height - foot) - share * (height - foot - 16)
        parts.append(text.format(x, height - foot + 18, "middle", "tick", f"{x0 + share * (x1 - x0):.3g}"))
        parts.append(text.format(left - 8, y + 4, "end", "tick", f"{y0 + share * (y1 - y0):.3g}"))
    parts.append(text.format((width + left) / 2, height - 6, "middle", "axis-name", axes[0]))
    parts.append(text.format(left + 6, 14, "start", "axis-name", axes[1]))
    for point in points:
        x, y = at(point)
        words = f"{point.name}: {axes[0]} {point.cost:.4g}, {axes[1]} {point.quality:.4g}"
        parts.append(
            Markup(
                '<g class="point{}" role="img" aria-label="{}"><title>{}</title><circle cx="{}" cy="{}" r="{}"/></g>'
            ).format(
                " chosen" if point.chosen else "",
                words,
                words,
                round(x, 1),
                round(y, 1),
                8 if point.chosen else 5,
            )
        )
        end = x > 0.7 * width
        parts.append(
            text.format(x - 11 if end else x + 11, y + 4, "end" if end else "start", "label", point.name)
        )
    return Markup("").join([*parts, Markup("</svg>")])


def front(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """The points that no other beats in both, from cheap to dear.

    Example:
        >>> tried = [("a", 1, 0.9), ("b", 2, 0.8), ("c", 3, 0.95)]
        >>> points = [ParetoPoint(name=name, cost=cost, quality=quality) for name, cost, quality in tried]
        >>> [point.name for point in front(points)]
        ['a', 'c']
    """
    kept: list[ParetoPoint] = []
    for point in sorted(points, key=lambda point: (point.cost, -point.quality)):
        if not kept or point.quality > kept[-1].quality:
            kept.append(point)
    return kept


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"…{text[1 - length :]}"
