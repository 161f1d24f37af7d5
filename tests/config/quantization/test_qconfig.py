"""Whole configs: values that can be compared, hashed, copied, written and read back."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import yaml
from hypothesis import given

from sparsebit.config.quantization.qconfig import QConfig, load_qconfig
from sparsebit.errors import ConfigError
from tests.config.strategies import configs, plain_config, weights


@given(configs())
def test_to_dict_and_to_yaml_read_back_as_the_same(data: dict[str, Any]) -> None:
    config = load_qconfig(data)
    assert load_qconfig(config.to_dict()) == config
    assert load_qconfig(yaml.safe_load(config.to_yaml())) == config
    assert hash(load_qconfig(config.to_dict())) == hash(config)
    assert load_qconfig(config.to_dict()).to_yaml() == config.to_yaml()


@given(configs(), configs())
def test_equal_exactly_when_they_say_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = load_qconfig(one), load_qconfig(other)
    assert (first == second) == (first.to_dict() == second.to_dict())


@given(configs())
def test_copies_are_equal(data: dict[str, Any]) -> None:
    config = load_qconfig(data)
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_where_it_came_from_plays_no_part() -> None:
    config = load_qconfig("w4a8")
    assert config.source == "w4a8"
    other = load_qconfig(config.to_dict())
    assert other.source == "qconfig"
    assert other == config and hash(other) == hash(config)


def test_made_directly_it_is_checked_as_well() -> None:
    assert QConfig(**plain_config()) == load_qconfig(plain_config())
    with pytest.raises(ConfigError, match=r"qconfig: W\.QUANTIZER\.BITT: unknown key; did you mean 'BIT'\?"):
        QConfig(**plain_config(W=weights(QUANTIZER={"BITT": 3})))
    with pytest.raises(ConfigError, match="rule: tensorrt"):
        QConfig(**plain_config(BACKEND="tensorrt"))
    config = load_qconfig("w4a8")
    assert QConfig(W=config.W, A=config.A).W == config.W


def test_the_yaml_is_for_people() -> None:
    text = load_qconfig(plain_config(W=weights(SPECIFIC={"fc": ["QUANTIZER.BIT", 4]}))).to_yaml()
    assert "  SPECIFIC:\n  - fc: [QUANTIZER.BIT, 4]\n" in text
    assert text.splitlines()[0] == "DEVICE: auto"


def test_a_pruning_config_is_told_where_it_belongs() -> None:
    with pytest.raises(
        ConfigError, match=r"SPARSER: unknown key; this is a pruning config, for sparsebit.prune"
    ):
        load_qconfig({"SPARSER": {"RATIO": 0.5}})


def test_a_side_is_w_or_a() -> None:
    with pytest.raises(ValueError, match="side: expected 'W' or 'A', got 'weights'"):
        load_qconfig("w4a8").spec_for("weights", names=[], op=None)  # type: ignore[arg-type]


def test_rules_of_a_side() -> None:
    config = load_qconfig("w4a8", ["A.SPECIFIC={fc: [QUANTIZER.BIT, 4]}"])
    assert config.rules("W") == ()
    assert config.rules("A") == config.A.SPECIFIC
