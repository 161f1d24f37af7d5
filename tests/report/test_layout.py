"""Boxes do not overlap, lines lead down, whatever the graph."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sparsebit.report.layout import HEIGHT, WIDTH, place


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(1, 25))
    return [sorted(draw(st.sets(st.integers(0, box - 1), max_size=3))) if box else [] for box in range(count)]


@given(graphs())
def test_boxes_do_not_overlap_and_lines_lead_down(inputs: list[list[int]]) -> None:
    layout = place(inputs)
    assert len(layout.corners) == len(inputs) and len(layout.lines) == sum(map(len, inputs))
    for index, one in enumerate(layout.corners):
        assert -1 <= one.x <= layout.width - WIDTH + 1 and 0 <= one.y <= layout.height - HEIGHT
        for other in layout.corners[:index]:
            assert abs(one.x - other.x) >= WIDTH - 1 or abs(one.y - other.y) >= HEIGHT
    lines = iter(layout.lines)
    for box, sources in enumerate(inputs):
        for source in sources:
            line = next(lines)
            assert layout.corners[source].y < layout.corners[box].y
            assert line[0].y == layout.corners[source].y + HEIGHT and line[-1].y == layout.corners[box].y
            assert all(a.y <= b.y for a, b in itertools.pairwise(line))


@given(graphs())
def test_lines_go_around_boxes(inputs: list[list[int]]) -> None:
    layout = place(inputs)
    for line in layout.lines:
        for start, end in zip(line[1:-1:2], line[2:-1:2], strict=True):  # the straight parts beside boxes
            assert start.x == end.x
            for corner in layout.corners:
                beside = corner.y == start.y
                assert not (beside and corner.x < start.x < corner.x + WIDTH)


def test_nothing_has_a_layout_too() -> None:
    assert place([]).corners == ()
