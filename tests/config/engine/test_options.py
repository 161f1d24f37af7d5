"""Options: a mapping that can be hashed, and how a plug-in refuses one."""

from __future__ import annotations

import pytest

from sparsebit.config.engine.options import Options, require
from sparsebit.errors import ConfigError


def test_options_are_a_mapping_that_can_be_hashed() -> None:
    assert Options({"a": 1}, b=2) == {"a": 1, "b": 2}
    assert hash(Options(a=1, b=2)) == hash(Options(b=2, a=1))
    assert repr(Options(a="x")) == "Options(a='x')"


def test_what_is_out_of_range_is_said_with_its_value() -> None:
    require("mse", True, "at least 1", steps=0)
    with pytest.raises(ConfigError) as caught:
        require("mse", False, "at least 1", steps=0, bins=3)
    assert str(caught.value) == (
        "mse: steps or bins is out of range\n  expected: at least 1\n  got:      steps=0, bins=3"
    )
