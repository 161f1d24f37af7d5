"""The trade-off as a picture: quality against cost for all trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sparsebit.analysis.pareto_front import pareto_front
from sparsebit.report.content import ParetoPoint

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT = 920.0, 380.0
LEFT, RIGHT, TOP, FOOT = 70.0, 24.0, 34.0, 52.0
LETTER, LINE = 6.4, 15.0  # of a label, about
LONGEST = 46  # letters of one
LEAST = 0.05  # the least range of quality on the axis, so that a difference of one image looks small


class Box(NamedTuple):
    """A rectangle: its corner and its size."""

    x: float
    y: float
    w: float
    h: float

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return (
            self.x < other.x + other.w
            and other.x < self.x + self.w
            and self.y < other.y + other.h
            and other.y < self.y + self.h
        )

    def distance(self, spot: tuple[float, float]) -> float:
        """To a point; 0 inside."""
        x, y = spot
        across, up = max(self.x - x, 0.0, x - self.x - self.w), max(self.y - y, 0.0, y - self.y - self.h)
        return math.hypot(across, up)


def draw_pareto(points: Sequence[ParetoPoint], axes: tuple[str, str]) -> Markup:
    """All points, the line through those that no other beats, and as many names as there is room for."""
    from markupsafe import Markup

    percent = axes[1] == "accuracy" and max(abs(point.quality) for point in points) <= 1
    widest = 1.04 * max(point.cost for point in points) or 1.0
    across = [value for value in ticks(0.0, widest) if value <= widest]
    up = ticks(*_enough(points, percent))

    def at(point: ParetoPoint) -> tuple[float, float]:
        return _x(point.cost, widest), _y(point.quality, up)

    best = [at(point) for point in best_points(points)]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in best)
    label = f"{axes[1]} against {axes[0]}, {len(points)} points; the table below has the same"
    parts = [
        Markup('<svg class="pareto" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, label
        )
    ]
    text = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>')
    grid = ""
    for value in across:
        grid += f"M{_x(value, widest):.1f} {TOP}V{HEIGHT - FOOT}"
        parts.append(text.format(_x(value, widest), HEIGHT - FOOT + 18, "middle", "tick", f"{value:.6g}"))
    for value in up:
        grid += f"M{LEFT} {_y(value, up):.1f}H{WIDTH - RIGHT}"
        words = f"{100 * value:.6g} %" if percent else f"{value:.6g}"
        parts.append(text.format(LEFT - 8, _y(value, up) + 4, "end", "tick", words))
    parts.append(Markup('<path class="grid" d="{}"/><path class="front" d="{}"/>').format(grid, line))
    parts.append(text.format(WIDTH - RIGHT, HEIGHT - 10, "end", "axis-name", f"{axes[0]} →"))
    parts.append(text.format(8, 16, "start", "axis-name", f"↑ {axes[1]}"))
    for point in points:
        x, y = at(point)
        words = f"{point.name}: {axes[0]} {point.cost:.4g}, {axes[1]} {point.quality:.4g}"
        kind = " chosen" if point.chosen else " best" if (x, y) in best else ""
        parts.append(
            Markup('<g class="point{}"><title>{}</title><circle cx="{:.1f}" cy="{:.1f}" r="{}"/></g>').format(
                kind, words, x, y, 8 if point.chosen else 5
            )
        )
    for point, name, box in place_names(points, [at(point) for point in points], best_points(points)):
        kind = "label chosen" if point.chosen else "label"
        parts.append(text.format(box.x, box.y + LINE - 4, "start", kind, name))
    return Markup("").join([*parts, Markup("</svg>")])


def place_names(
    points: Sequence[ParetoPoint], spots: Sequence[tuple[float, float]], first: Sequence[ParetoPoint] = ()
) -> list[tuple[ParetoPoint, str, Box]]:
    """Names beside their points in free space: first the chosen one's, then those of the best, then the others.

    Each is nearer to its own point than to any other, except that of the chosen, which stands out
    anyway. A name without room is left out; the page has a table of all.
    """
    taken = [Box(x - 8, y - 8, 16, 16) for x, y in spots]
    order = sorted(
        range(len(points)), key=lambda index: (not points[index].chosen, points[index] not in first, index)
    )
    placed = []
    for index in order:
        name, (x, y) = _short(points[index].name), spots[index]
        wide = LETTER * len(name)
        around = ((x + 12, y - 8), (x - 12 - wide, y - 8), (x - wide / 2, y - 26), (x - wide / 2, y + 11))
        beside = ((x + 6, y - 26), (x + 6, y + 11), (x - 6 - wide, y - 26), (x - 6 - wide, y + 11))
        for left, top in (*around, *beside):
            box = Box(left, top, wide, LINE)
            inside = (
                left >= LEFT and left + wide <= WIDTH and top >= TOP - LINE and top + LINE <= HEIGHT - FOOT
            )
            mine = box.distance(spots[index])
            nearest = points[index].chosen or all(
                mine < box.distance(spot) for other, spot in enumerate(spots) if other != index
            )
            if inside and nearest and not any(box.meets(other) for other in taken):
                taken.append(box)
                placed.append((points[index], name, box))
                break
    return placed


def best_points(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """The points that no other beats in both numbers, the cheapest first.

    Example:
        >>> tried = [("a", 1, 0.9), ("b", 2, 0.8), ("c", 3, 0.95)]
        >>> points = [ParetoPoint(name=name, cost=cost, quality=quality) for name, cost, quality in tried]
        >>> [point.name for point in best_points(points)]
        ['a', 'c']
    """
    return pareto_front(points, lambda point: (point.cost, -point.quality))


def explain_choice(points: Sequence[ParetoPoint], axes: tuple[str, str], reason: str = "") -> str:
    """Why the chosen point is not on the line, for the page; empty if it is, or if none was chosen.

    Example:
        >>> points = [
        ...     ParetoPoint(name="w4a8", cost=20, quality=0.9),
        ...     ParetoPoint(name="int8", cost=40, quality=0.9, chosen=True),
        ... ]
        >>> explain_choice(points, ("kB", "accuracy"))
        'It is not on the line: w4a8 has less kB and the same accuracy.'
    """
    chosen = next((point for point in points if point.chosen), None)
    best = best_points(points)
    if chosen is None or chosen in best:
        return ""
    better = next(point for point in reversed(best) if point.cost <= chosen.cost)
    cost = f"less {axes[0]}" if better.cost < chosen.cost else f"the same {axes[0]}"
    quality = f"a better {axes[1]}" if better.quality > chosen.quality else f"the same {axes[1]}"
    text = f"It is not on the line: {better.name} has {cost} and {quality}."
    return f"{text} It was chosen because {reason}" if reason else text


def _enough(points: Sequence[ParetoPoint], percent: bool) -> tuple[float, float]:
    """The range of the qualities, widened if it is so small that noise would dominate the picture."""
    low, high = min(point.quality for point in points), max(point.quality for point in points)
    missing = LEAST * max(abs(low), abs(high)) - (high - low)
    if missing <= 0:
        return low, high
    above = min(missing / 2, 1 - high) if percent else missing / 2
    return low - (missing - above), high + above


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers, evenly apart, that enclose a range.

    Example:
        >>> ticks(0, 302), ticks(0.9933, 0.995)
        ([0.0, 100.0, 200.0, 300.0, 400.0], [0.993, 0.9935, 0.994, 0.9945, 0.995])
    """
    if not high > low:
        high, low = high + (abs(high) * 0.01 or 1.0), low - (abs(low) * 0.01 or 1.0)
    rough = (high - low) / (most - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{step * count:.12g}") for count in range(first, last + 1)]


def _x(value: float, widest: float) -> float:
    return LEFT + value / widest * (WIDTH - LEFT - RIGHT)


def _y(value: float, marks: Sequence[float]) -> float:
    return HEIGHT - FOOT - (value - marks[0]) / (marks[-1] - marks[0]) * (HEIGHT - FOOT - TOP)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
