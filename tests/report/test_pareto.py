"""The trade-off: round numbers on its axes, the line along the best, and names that never cover each other."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsebit.report import ParetoPoint
from sparsebit.report.pareto import (
    FOOT,
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    Box,
    draw_pareto,
    explain_choice,
    place_names,
    ticks,
)

pytest.importorskip("jinja2")
NUMBER = st.floats(0, 1e6, allow_subnormal=False)


@given(NUMBER, NUMBER)
def test_ticks_enclose_the_range_and_are_evenly_apart(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    marks = ticks(low, high)
    room = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert marks[0] <= low + room and marks[-1] >= high - room and 2 <= len(marks) <= 8
    steps = [y - x for x, y in itertools.pairwise(marks)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-2)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(LEFT, WIDTH), st.floats(TOP, HEIGHT - FOOT)), min_size=1, max_size=30))
def test_names_cover_neither_each_other_nor_any_point(spots: list[tuple[float, float]]) -> None:
    points = [
        ParetoPoint(name=f"recipe number {i}", cost=0, quality=0, chosen=i == 2) for i in range(len(spots))
    ]
    names = place_names(points, spots)
    for point, _, box in names:
        own = box.distance(spots[points.index(point)])
        assert point.chosen or all(own <= box.distance(spot) for spot in spots)
    placed = [box for _, _, box in names]
    for one, other in itertools.combinations(placed, 2):
        assert not one.meets(other)
    for box, (x, y) in itertools.product(placed, spots):
        assert not box.meets(Box(x - 5, y - 5, 10, 10))


def test_the_chosen_one_is_named_first_and_percent_are_written() -> None:
    points = [
        ParetoPoint(name="<float>", cost=300, quality=0.995),
        *(ParetoPoint(name=f"a rather long name {i}", cost=20 + i / 9, quality=0.9933) for i in range(9)),
        ParetoPoint(name="mine", cost=20.5, quality=0.9933, chosen=True),
    ]
    text = str(draw_pareto(points, ("kB", "accuracy")))
    assert (
        re.search(r'class="label chosen">mine<', text)
        and "<float>" not in text
        and "99 %" in text
        and "95 %" in text
    )
    assert text.count("<circle") == 11 and "-" not in "".join(re.findall(r'class="tick">([^<]*)<', text))
    one = str(draw_pareto([ParetoPoint(name="only", cost=0, quality=5)], ("kB", "metric")))
    assert "nan" not in one and "only" in one


def test_a_difference_of_one_image_does_not_fill_the_picture() -> None:
    points = [ParetoPoint(name=n, cost=c, quality=q) for n, c, q in (("a", 1, 0.9933), ("b", 2, 0.995))]
    text = str(draw_pareto(points, ("kB", "accuracy")))
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', text)]
    assert abs(heights[0] - heights[1]) < (HEIGHT - FOOT - TOP) / 15
    assert "101 %" not in text


def test_a_chosen_point_off_the_line_is_explained() -> None:
    rows = (("w4", 20.0, 0.9), ("int8", 40.0, 0.89), ("float", 90.0, 0.95))
    points = [ParetoPoint(name=n, cost=c, quality=q, chosen=n == "int8") for n, c, q in rows]
    words = explain_choice(points, ("kB", "accuracy"), "it is faster.")
    assert words == (
        "It is not on the line: w4 has less kB and a better accuracy. It was chosen because it is faster."
    )
    assert explain_choice([points[0], points[2]], ("kB", "accuracy"), "it is faster.") == ""
