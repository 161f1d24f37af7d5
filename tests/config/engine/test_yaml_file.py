"""YAML: numbers as everyone else reads them, no key twice, and errors with their line."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.errors import ConfigError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(TREES)
def test_what_pyyaml_writes_is_read(tree: object) -> None:
    assert read_yaml(yaml.safe_dump(tree), "x.yaml") == tree


@given(st.floats(1e-9, 1e9))
def test_exponents_need_no_point(value: float) -> None:
    text = f"{value:e}".replace(".", "") if "." not in f"{value:e}" else f"{value:.0e}"
    assert read_yaml(text, "x.yaml") == float(text)
    assert read_yaml(f'"{text}"', "x.yaml") == text


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
        ("W: *nobody\n", "w8.yaml: line 1, column 4: found undefined alias 'nobody'"),
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
