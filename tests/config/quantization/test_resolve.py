"""Specs for tensors: base, then FIRST_LAST, then rules in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.config.quantization.resolve import apply_settings, flatten_side, make_spec
from sparsebit.config.quantization.tensor_spec import TensorSpec
from sparsebit.targets.schemes import SIDES
from tests.config.strategies import activations, configs, plain_config, weights


def spec(side: Any = "W", *, first_or_last: bool = False, name: str = "fc", **sections: Any) -> TensorSpec:
    config = load_qconfig(plain_config(**sections))
    return config.spec_for(side, names=[name], op="linear", first_or_last=first_or_last)


def test_the_spec_says_what_the_keys_say() -> None:
    section = {
        "QSCHEME": "per-tensor-affine",
        "QUANTIZER": {"TYPE": "pact", "BIT": 4, "PACT": {"ALPHA_VALUE": 6}},
        "OBSERVER": {"TYPE": "moving_average", "MOVING_AVERAGE": {"EMA_RATIO": 0.5}, "LAYOUT": "NLC"},
    }
    assert spec("A", A=section) == TensorSpec(
        bits=4,
        symmetric=False,
        quantizer="pact",
        quantizer_options={"alpha_value": 6.0},
        observer="moving_average",
        observer_options={"ema_ratio": 0.5},
        layout="NLC",
    )


@pytest.mark.parametrize(
    ("observer", "options"),
    [
        ({"TYPE": "minmax"}, {}),
        ({"TYPE": "mse", "OPTIONS": {"steps": 5}}, {"steps": 5}),
        ({"TYPE": "percentile", "PERCENTILE": {"ALPHA": 0.1}}, {"alpha": 0.1}),
        ({"TYPE": "aciq", "ACIQ": {"DISTRIBUTION": "LAPLACE"}}, {"distribution": "laplace"}),
    ],
)
def test_options_are_those_of_the_chosen_observer(observer: dict[str, Any], options: dict[str, Any]) -> None:
    assert spec(W=weights(OBSERVER=observer)).observer_options == options


def test_groups_have_a_size_and_nothing_else_has() -> None:
    grouped = spec(W=weights(QSCHEME="per-group-affine", GROUP_SIZE=64))
    assert (grouped.granularity, grouped.group_size, grouped.symmetric) == ("group", 64, False)
    assert spec(W=weights(GROUP_SIZE=64)).group_size is None


@pytest.mark.parametrize("quantizer", [{"BIT": 0}, {"BIT": 8, "DISABLE": True}])
def test_off_in_both_ways(quantizer: dict[str, Any]) -> None:
    assert not spec(W=weights(QUANTIZER=quantizer)).enabled


def test_rules_accumulate_and_later_ones_win() -> None:
    side = weights(
        SPECIFIC=[
            {"op:linear": ["QUANTIZER.BIT", 6, "OBSERVER.TYPE", "mse"], "fc": ["QUANTIZER.BIT", 4]},
            {"f*": {"QSCHEME": "per-tensor-symmetric"}},
            {"conv": {"QUANTIZER.BIT": 2}},
        ]
    )
    found = spec(W=side)
    assert (found.bits, found.observer, found.scheme) == (4, "mse", "per-tensor-symmetric")
    assert spec(W=side, name="head").bits == 6


@given(configs(), st.lists(st.sampled_from(["conv1", "layer1.0", "layer1_0_conv1", "on", "1"]), min_size=1))
def test_a_spec_is_the_base_with_the_matching_rules_on_top(data: dict[str, Any], names: list[str]) -> None:
    config = load_qconfig(data)
    for side in SIDES:
        flat = flatten_side(getattr(config, side))
        for rule in config.rules(side):
            if rule.matches(names, "conv2d"):
                flat = apply_settings(flat, dict(rule.settings))
        assert config.spec_for(side, names=names, op="conv2d") == make_spec(flat, side)


def test_bits_alone_mean_integers_again() -> None:
    side = weights(QUANTIZER={"BIT": "fp8_e4m3"}, SPECIFIC={"fc": ["QUANTIZER.BIT", 8]})
    assert spec(W=side).dtype == "int"
    assert spec(W=side, name="conv").dtype == "fp8_e4m3"


def test_a_float_type_alone_has_8_bits_and_switches_on() -> None:
    for bits in (0, 4):
        side = weights(QUANTIZER={"BIT": bits}, SPECIFIC={"fc": ["QUANTIZER.DTYPE", "fp8_e5m2"]})
        found = spec(W=side)
        assert (found.enabled, found.bits, found.dtype) == (True, 8, "fp8_e5m2")


def test_options_go_with_the_plug_in_they_belong_to() -> None:
    section = {"TYPE": "mse", "OPTIONS": {"steps": 100}}
    side = weights(
        OBSERVER=section, SPECIFIC={"fc": ["OBSERVER.TYPE", "minmax"], "head": ["OBSERVER.TYPE", "mse"]}
    )
    assert spec(W=side).observer_options == {}
    assert spec(W=side, name="head").observer_options == {"steps": 100}


def test_first_and_last_layers() -> None:
    four = weights(QUANTIZER={"BIT": 4})
    assert spec(W=four, FIRST_LAST=8).bits == 4
    assert spec(W=four, FIRST_LAST=8, first_or_last=True).bits == 8
    assert spec("A", A=activations(QUANTIZER={"BIT": 4}), FIRST_LAST=8, first_or_last=True).bits == 8
    assert not spec(W=four, FIRST_LAST="float", first_or_last=True).enabled
    assert spec(W=four, first_or_last=True).bits == 4
    assert (
        spec(W=four, FIRST_LAST="fp8_e4m3", A=activations(QUANTIZER={"BIT": 0}), first_or_last=True).dtype
        == "fp8_e4m3"
    )


@pytest.mark.parametrize("quantizer", [{"BIT": 0}, {"BIT": 4, "DISABLE": True}])
def test_first_last_switches_nothing_on(quantizer: dict[str, Any]) -> None:
    assert not spec(W=weights(QUANTIZER=quantizer), FIRST_LAST=8, first_or_last=True).enabled


def test_a_rule_decides_over_first_last() -> None:
    side = weights(QUANTIZER={"BIT": 4}, SPECIFIC={"fc": ["QUANTIZER.BIT", 6]})
    assert spec(W=side, FIRST_LAST="float", first_or_last=True).bits == 6
