"""The layout of a graph: boxes in rows by their distance from the inputs, each below its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT, GAP_X, GAP_Y = 176, 52, 28, 34
LANE = 0.35  # the room that a passing line takes, in boxes
SWEEPS = 6


class Point(NamedTuple):
    """The upper left corner of a box, or a point on a line."""

    x: float
    y: float


class GraphLayout(NamedTuple):
    """Corners of the boxes in the given order, the path of each line, and the total size.

    ``lines`` has, for each box and each of its inputs, the points from the foot of the input to the head of the box.
    """

    corners: tuple[Point, ...]
    lines: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def place(inputs: Sequence[Sequence[int]]) -> GraphLayout:
    """Lay out an acyclic graph, given the earlier boxes that each box reads.

    Each box is one row below its lowest input. A line over several rows gets a narrow lane in each, so that it goes
    around boxes. Within a row, boxes are sorted by the mean position of their neighbours, in a few passes down and up,
    which removes most crossings.

    Example:
        >>> [corner.y for corner in place([[], [0], [0], [1, 2]]).corners]
        [0.0, 86.0, 86.0, 172.0]
    """
    count = len(inputs)
    rank: list[int] = []
    for sources in inputs:
        rank.append(1 + max((rank[source] for source in sources), default=-1))
    above: list[list[int]] = [[] for _ in range(count)]
    ways: list[list[int]] = []  # for each line, what it passes: input, lanes, box
    for box, sources in enumerate(inputs):
        for source in sources:
            way = [source]
            for row in range(rank[source] + 1, rank[box]):
                rank.append(row)
                above.append([way[-1]])
                way.append(len(rank) - 1)
            above[box].append(way[-1])
            ways.append([*way, box])
    position = _positions(rank, above, count)
    left = min((position[box] - _width(box, count) / 2 for box in range(len(rank))), default=0.0)
    middles = [(position[box] - left) * (WIDTH + GAP_X) - GAP_X / 2 for box in range(len(rank))]
    corners = tuple(Point(middles[box] - WIDTH / 2, _top(rank[box])) for box in range(count))
    lines = []
    for way in ways:
        points = [Point(middles[way[0]], _top(rank[way[0]]) + HEIGHT)]
        for lane in way[1:-1]:
            points += [
                Point(middles[lane], _top(rank[lane])),
                Point(middles[lane], _top(rank[lane]) + HEIGHT),
            ]
        lines.append((*points, Point(middles[way[-1]], _top(rank[way[-1]]))))
    right = max((middles[box] + _width(box, count) * WIDTH / 2 for box in range(len(rank))), default=0.0)
    return GraphLayout(corners, tuple(lines), right, _top(max(rank, default=0)) + HEIGHT)


def _positions(rank: list[int], above: list[list[int]], count: int) -> list[float]:
    below: list[list[int]] = [[] for _ in rank]
    for box, sources in enumerate(above):
        for source in sources:
            below[source].append(box)
    rows: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for box, row in enumerate(rank):
        rows[row].append(box)
    position = [0.0] * len(rank)
    for row_boxes in rows:
        for box, x in zip(row_boxes, _apart([0.0] * len(row_boxes), row_boxes, count), strict=True):
            position[box] = x
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row_boxes in rows if down else reversed(rows):
            target = {box: _mean([position[n] for n in neighbours[box]], position[box]) for box in row_boxes}
            # If a box and a passing line have the same target, the line moves.
            row_boxes.sort(key=lambda box: (target[box], box >= count))
            for box, x in zip(
                row_boxes, _apart([target[b] for b in row_boxes], row_boxes, count), strict=True
            ):
                position[box] = x
    return position


def _apart(targets: list[float], boxes: list[int], count: int) -> list[float]:
    """The target positions, moved so that neighbours do not overlap, around the targets of the boxes among them."""
    placed: list[float] = []
    for index, target in enumerate(targets):
        if placed:
            room = (_width(boxes[index - 1], count) + _width(boxes[index], count)) / 2
            target = max(target, placed[-1] + room)
        placed.append(target)
    moved = [(w - x, b) for w, x, b in zip(targets, placed, boxes, strict=True)]
    shift = _mean([by for by, box in moved if box < count] or [by for by, _ in moved], 0.0)
    return [x + shift for x in placed]


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _width(box: int, count: int) -> float:
    return 1.0 if box < count else LANE


def _top(rank: int) -> float:
    return float(rank * (HEIGHT + GAP_Y))
