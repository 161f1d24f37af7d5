"""Pictures as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsebit.analysis.profiling.agreement import decibels
from sparsebit.report.content import GraphNode, TensorHistogram
from sparsebit.report.layout import HEIGHT, WIDTH, Point, place
from sparsebit.report.numbers import grade

if TYPE_CHECKING:
    from markupsafe import Markup

LETTERS = 21  # of a name that fit into a box
GRID_LINES = 33  # codes that are drawn at most


def draw_graph(nodes: Sequence[GraphNode]) -> Markup:
    """The graph. Each box is an SVG group at its position; the page's script handles view and selection."""
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
    """A smooth line: straight beside boxes, curved between the rows."""
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
        name=_end_of(node.name, LETTERS),
        second=_end_of(second, LETTERS + 3),
        third=_end_of(third, LETTERS + 5),
    )


def draw_histogram(shown: TensorHistogram) -> Markup:
    """Bars along the codes, the grid as lines below them, and clipped values in another colour."""
    from markupsafe import Markup

    width, height, foot = 340.0, 110.0, 22.0
    scale = width / (shown.hi - shown.lo)
    middles = [
        shown.lo + (index + 0.5) / len(shown.counts) * (shown.hi - shown.lo)
        for index in range(len(shown.counts))
    ]
    fits = [shown.qmin - 0.5 <= middle <= shown.qmax + 0.5 for middle in middles]
    inside, outside = (
        _bars(
            [count if fit == kept else 0 for count, fit in zip(shown.counts, fits, strict=True)],
            width,
            height,
        )
        for kept in (True, False)
    )
    every = -(-(shown.qmax - shown.qmin + 1) // GRID_LINES)
    codes = range(shown.qmin, shown.qmax + 1, every)
    lines = "".join(f"M{(code - shown.lo) * scale:.1f} 0v{height + 5:.0f}" for code in codes)
    ends = "".join(
        f"M{(code - shown.lo) * scale:.1f} 0v{height + 7:.0f}" for code in (shown.qmin, shown.qmax)
    )
    label = f"{shown.name}: {sum(shown.counts)} numbers on the {shown.codes} grid from {shown.qmin} to {shown.qmax}"
    caption = "" if every == 1 else f"every {every}th of {shown.qmax - shown.qmin + 1} steps is drawn"
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
        inside=inside,
        outside=outside,
        ends=ends,
        texts=Markup("").join(
            [
                text.format(round((shown.qmin - shown.lo) * scale, 1), height + 18, "start", shown.qmin),
                text.format(round((shown.qmax - shown.lo) * scale, 1), height + 18, "end", shown.qmax),
                text.format(width / 2, height + 18, "middle", caption),
            ]
        ),
    )


def _bars(counts: Sequence[int], width: float, height: float) -> str:
    """The outline of all bars as one path, because a page has hundreds of histograms."""
    step, top = width / max(len(counts), 1), max(counts, default=0) or 1
    path, open_at = "", False
    for index, count in enumerate(counts):
        if count and not open_at:
            path += f"M{index * step:.1f} {height:.0f}"
        if count:
            # The root keeps rare codes visible beside common ones.
            path += f"V{height - max(1.0, math.sqrt(count / top) * (height - 6)):.0f}h{step:.2f}"
        elif open_at:
            path += f"V{height:.0f}z"
        open_at = bool(count)
    return f"{path}V{height:.0f}z" if open_at else path


def _end_of(text: str, most: int) -> str:
    """The end of a long text, which distinguishes layers better than its beginning.

    Example:
        >>> _end_of("encoder.layer.0.attention.self.query", 21)
        '…attention.self.query'
    """
    return text if len(text) <= most else f"…{text[1 - most :]}"
