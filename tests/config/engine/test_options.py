"""Options: a mapping that can be hashed."""

from __future__ import annotations

from sparsebit.config.engine.options import Options


def test_options_are_a_mapping_that_can_be_hashed() -> None:
    assert Options({"a": 1}, b=2) == {"a": 1, "b": 2}
    assert hash(Options(a=1, b=2)) == hash(Options(b=2, a=1))
    assert repr(Options(a="x")) == "Options(a='x')"
