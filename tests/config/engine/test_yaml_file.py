"""YAML: numbers as everyone else reads them, no key twice, and errors with their line."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparsebit.config.engine.yaml_file import read_yaml, write_yaml
from sparsebit.errors import ConfigError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(st.dictionaries(st.text(), TREES))
@example({"0E0": "0E0", "a": ["1e3", "+.5E-1", 1e3]})
def test_what_is_written_is_read(tree: dict[str, object]) -> None:
    assert read_yaml(write_yaml(tree), "x.yaml") == tree


@given(st.floats(1e-9, 1e9))
def test_exponents_need_no_point(value: float) -> None:
    text = f"{value:e}".replace(".", "") if "." not in f"{value:e}" else f"{value:.0e}"
    assert read_yaml(text, "x.yaml") == float(text)
    assert read_yaml(f'"{text}"', "x.yaml") == text


def test_a_pair_with_a_colon_is_a_text() -> None:
    assert read_yaml("[2:4, -1:30, 1:2:3, 12:30.5, 124]", "x.yaml") == [
        "2:4",
        "-1:30",
        "1:2:3",
        "12:30.5",
        124,
    ]


def test_anchors_and_merge_keys() -> None:
    text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"
    assert read_yaml(text, "x.yaml") == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("W:\n  BIT: 8\n  BIT: 4\n", "w8.yaml: line 3, column 3: the key 'BIT' is already on line 2"),
        ("W: 1\nA: 2\nW: 3\n", "w8.yaml: line 3, column 1: the key 'W' is already on line 1"),
        ("W:\n  BIT: 8: 9\n", "w8.yaml: line 2, column 9: mapping values are not allowed here"),
        ("W: [1, 2\n", "w8.yaml: line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        ("W: 1\n---\nA: 2\n", "w8.yaml: line 2, column 1: but found another document"),
        (
            "W: !!python/object:os.system x\n",
            "w8.yaml: line 1, column 4: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'",
        ),
        ("W: *unknown\n", "w8.yaml: line 1, column 4: found undefined alias 'unknown'"),
        ("{[a]: 1}: 2\n", "w8.yaml: line 1, column 1: found unhashable key"),
        (
            "a: \x00b",
            "w8.yaml: not valid YAML: unacceptable character #x0000: special characters are not allowed "
            'in "<unicode string>", position 3',
        ),
    ],
)
def test_what_is_not_yaml(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "w8.yaml")
    assert str(caught.value) == message


def test_brackets_without_end() -> None:
    with pytest.raises(ConfigError, match=r"w8\.yaml: nested too deeply to be a config"):
        read_yaml("[" * 100_000, "w8.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("W: 2020-99-99", "line 1, column 4: cannot be read as timestamp: '2020-99-99'"),
        ("BIT: 0x_", "line 1, column 6: cannot be read as int: '0x_'"),
        ("BIT: !!bool maybe", "line 1, column 6: cannot be read as bool: 'maybe'"),
        ("a: 1\nBIT: !!int ''", "line 2, column 6: cannot be read as int: ''"),
        ("BIT: " + "9" * 6000, "line 1, column 6: cannot be read as int: '9999"),
        ("BIT: !!float [1]", "line 1, column 6"),
        ("BIT: !!timestamp x", "line 1, column 6: cannot be read as timestamp: 'x'"),
        ("!!omap 3", "line 1, column 1"),
        ("a: " + "x" * 2_000_000, "more than 2000000 characters"),
    ],
)
def test_values_that_cannot_be_built(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"b.yaml: {problem}")):
        read_yaml(text, "b.yaml")


ALIASES = "W: &a {x: 1}\n" + "".join(
    f"k{i}: &k{i} {{x: *{before}, y: *{before}}}\n"
    for i in range(60)
    for before in ["a" if i == 0 else f"k{i - 1}"]
)
MERGES = "k0: &k0 {x: 1}\n" + "".join(f"k{i}: &k{i}\n  <<: [*k{i - 1}, *k{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize("text", [ALIASES, MERGES])
def test_aliases_that_multiply_end_in_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="more than 50000 values once aliases are written out"):
        read_yaml(text, "bomb.yaml")
