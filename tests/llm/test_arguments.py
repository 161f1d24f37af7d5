"""Numbers that callers pass: what is accepted, and how a wrong one is named."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.llm.arguments import require_count, require_part, require_positive


@pytest.mark.parametrize(
    ("require", "right", "wrong", "told"),
    [
        (require_count, (1, 7), (0, -1, 1.5, True, "2", None), "n: expected a whole number, at least 1"),
        (
            require_part,
            (0, 0.0, 0.99),
            (1, -0.1, math.nan, True, "0.5"),
            "n: expected a number, at least 0 and",
        ),
        (
            require_positive,
            (1, 0.1),
            (0, -1.0, math.nan, math.inf, True, "1"),
            "n: expected a number above 0",
        ),
    ],
)
def test_wrong_numbers_are_named(
    require: Callable[[str, object], None], right: tuple[object, ...], wrong: tuple[object, ...], told: str
) -> None:
    for value in right:
        require("n", value)
    for value in wrong:
        with pytest.raises(SparsebitError, match=told) as caught:
            require("n", value)
        assert caught.value.got == repr(value)
    require_count("n", 0, least=0)
