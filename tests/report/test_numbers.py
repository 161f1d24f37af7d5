"""Numbers as people read them."""

from __future__ import annotations

import pytest

from sparsebit.report.content import Measure
from sparsebit.report.numbers import change, quantity


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(4e6, 1e6, "4.0× smaller"), (1e6, 2e6, "2.0× larger"), (1e6, 1e6, "1.0× smaller")],
)
def test_changes_in_words(before: float, after: float, words: str) -> None:
    assert change(Measure(name="size", before=before, after=after, unit="bytes")) == words


def test_quantities_have_units() -> None:
    assert [quantity(v, "seconds") for v in (2.5, 0.0025, 0.0000025)] == ["2.5 s", "2.5 ms", "2 µs"]
