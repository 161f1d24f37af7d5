"""Messages: one line each, all of them at once, with the parts kept."""

from __future__ import annotations

import pickle

import pytest

from sparsebit.config.engine.problems import (
    MOST_SHOWN,
    ConfigProblems,
    Problem,
    nearest,
    raise_problems,
    show,
    suggest,
)
from sparsebit.errors import ConfigError, SparsebitError

BIT = Problem(path="W.QUANTIZER.BITT", message="unknown key", hint="did you mean 'BIT'?")
TYPE = Problem(path="A.OBSERVER.TYPE", expected="a name", got="3")


def test_one_problem_is_one_line() -> None:
    error = ConfigProblems("w8.yaml", [BIT])
    assert str(error) == "w8.yaml: W.QUANTIZER.BITT: unknown key; did you mean 'BIT'?"
    assert (
        isinstance(error, ConfigError) and isinstance(error, SparsebitError) and isinstance(error, ValueError)
    )
    assert (error.where, error.hint) == ("w8.yaml: W.QUANTIZER.BITT", "did you mean 'BIT'?")


def test_several_are_listed() -> None:
    error = ConfigProblems("w8.yaml", [BIT, TYPE])
    assert str(error) == (
        "w8.yaml: 2 problems\n"
        "  W.QUANTIZER.BITT: unknown key; did you mean 'BIT'?\n"
        "  A.OBSERVER.TYPE: expected a name, got 3"
    )
    assert error.problems == (BIT, TYPE)


def test_a_problem_from_elsewhere_names_its_own_source() -> None:
    error = ConfigProblems("w8.yaml", [Problem(source="override 'X=1'", path="X", message="unknown key")])
    assert str(error) == "override 'X=1': X: unknown key"
    assert error.where == "override 'X=1': X"


def test_they_survive_a_trip_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(ConfigProblems("w8.yaml", [BIT, TYPE])))
    assert (error.source, error.problems) == ("w8.yaml", (BIT, TYPE))
    assert str(error) == str(ConfigProblems("w8.yaml", [BIT, TYPE]))


def test_raising_nothing_and_raising_once() -> None:
    raise_problems("w8.yaml", [])
    with pytest.raises(ConfigProblems) as caught:
        raise_problems("w8.yaml", [BIT, BIT])
    assert caught.value.problems == (BIT,)


def test_the_nearest_name_ignores_capitals() -> None:
    assert nearest("bit", ["BIT", "TYPE"]) == "BIT"
    assert nearest("nothing", ["BIT", "TYPE"]) is None
    assert suggest("zzz", ["BIT", "TYPE"]) == "there are: BIT, TYPE"


def test_a_message_is_short_however_much_is_wrong() -> None:
    problems = [Problem(path=f"KEY{index}", message="unknown key") for index in range(20_000)]
    error = ConfigProblems("w8.yaml", problems)
    assert len(str(error).splitlines()) == MOST_SHOWN + 2
    assert str(error).endswith("  and 19980 more")
    assert len(error.problems) == 20_000


def test_long_values_are_cut() -> None:
    assert show("x" * 100) == "'" + "x" * 56 + "..."
    assert show({"a": 1}) == "{'a': 1}"
    assert show(10**9999) == "a number with thousands of digits"
