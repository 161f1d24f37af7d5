"""Nothing on the front is beaten, and everything else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparsebit.analysis.pareto_front import pareto_front

triples = st.tuples(*[st.integers(0, 5)] * 3)


def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True))


@given(st.lists(triples))
def test_the_front_is_what_no_other_beats(points: list[tuple[int, ...]]) -> None:
    front = pareto_front(points, costs=lambda point: point)
    assert front == sorted(set(front))
    assert all(any(beats(best, point) for best in front) for point in points)
    assert not any(beats(a, b) for a in front for b in front if a is not b)
