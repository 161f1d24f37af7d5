"""SPECIFIC: one meaning in every form, and what is said about the forms that have none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from sparsebit.config.engine.specific import Rule, write_rules
from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.errors import ConfigError
from tests.config.strategies import activations, configs, plain_config, weights


def rules(specific: object) -> tuple[Rule, ...]:
    return load_qconfig(plain_config(W=weights(SPECIFIC=specific))).W.SPECIFIC


def complaint(specific: object, side: str = "W") -> str:
    section = weights(SPECIFIC=specific) if side == "W" else activations(SPECIFIC=specific)
    with pytest.raises(ConfigError) as caught:
        load_qconfig(plain_config(**{side: section}))
    return str(caught.value)


EXPECTED = (
    Rule("conv1", (("QUANTIZER.BIT", 8), ("OBSERVER.TYPE", "mse"))),
    Rule("op:linear", (("QUANTIZER.DISABLE", True),)),
)


@pytest.mark.parametrize(
    "specific",
    [
        [{"conv1": ["QUANTIZER.BIT", 8, "OBSERVER.TYPE", "MSE"], "op:linear": ["QUANTIZER.DISABLE", True]}],
        {"conv1": ["QUANTIZER.BIT", 8, "OBSERVER.TYPE", "mse"], "op:linear": ["QUANTIZER.DISABLE", "True"]},
        [{"conv1": {"QUANTIZER.BIT": "8", "OBSERVER.TYPE": "mse"}}, {"op:linear": {"QUANTIZER.DISABLE": 1}}],
        {
            "conv1": {"QUANTIZER": {"BIT": 8.0}, "OBSERVER": {"TYPE": "mse"}},
            "op:linear": {"QUANTIZER": {"DISABLE": True}},
        },
        {
            "conv1": ("QUANTIZER", {"BIT": 8}, "OBSERVER.TYPE", "mse"),
            "op:linear": {"QUANTIZER.DISABLE": True},
        },
        EXPECTED,
    ],
)
def test_every_form_means_the_same(specific: object) -> None:
    assert rules(specific) == EXPECTED


def test_no_rules_in_every_form() -> None:
    assert rules([]) == rules({}) == rules(None) == rules([{}]) == ()
    assert (
        rules({"conv1": None})
        == rules({"conv1": []})
        == rules({"conv1": {"QUANTIZER": None}})
        == (Rule("conv1", ()),)
    )


def test_a_module_named_by_a_number() -> None:
    assert rules({0: ["QUANTIZER.BIT", 4]})[0].pattern == "0"


def test_a_float_type_written_as_bits_sets_both() -> None:
    assert rules({"fc": ["QUANTIZER.BIT", "fp8_e4m3"]}) == (
        Rule("fc", (("QUANTIZER.BIT", 8), ("QUANTIZER.DTYPE", "fp8_e4m3"))),
    )


def test_options_of_a_plug_in() -> None:
    wanted = {"fc": {"OBSERVER": {"TYPE": "mse", "OPTIONS": {"steps": 50}}}}
    assert rules(wanted) == (Rule("fc", (("OBSERVER.TYPE", "mse"), ("OBSERVER.OPTIONS.steps", 50))),)


@given(configs())
def test_what_is_written_reads_back(data: dict[str, Any]) -> None:
    config = load_qconfig(data)
    for section in (config.W, config.A):
        written = write_rules(section.SPECIFIC)
        assert all(isinstance(group, dict) for group in written)
        assert sum(map(len, written)) == len(section.SPECIFIC)


def test_a_pattern_that_comes_back_keeps_its_place() -> None:
    wanted = [{"a": ["QUANTIZER.BIT", 4], "b": ["QUANTIZER.BIT", 5]}, {"a": ["QUANTIZER.BIT", 6]}]
    assert [rule.pattern for rule in rules(wanted)] == ["a", "b", "a"]
    assert write_rules(rules(wanted)) == wanted


@pytest.mark.parametrize(
    ("pattern", "names", "op", "matches"),
    [
        ("layer1.0.conv1", ["layer1.0.conv1", "layer1_0_conv1"], "conv2d", True),
        ("layer1_0_conv1", ["layer1.0.conv1", "layer1_0_conv1"], "conv2d", True),
        ("layer1.*", ["layer1.0.conv1", "layer1_0_conv1"], "conv2d", True),
        ("layer[2-4].*", ["layer1.0.conv1"], "conv2d", False),
        ("Layer1.*", ["layer1.0.conv1"], "conv2d", False),
        ("conv1", ["layer1.0.conv1"], "conv2d", False),
        ("op:conv2d", ["stem"], "conv2d", True),
        ("op:conv*", ["stem"], "conv2d", True),
        ("op:linear", ["linear"], "conv2d", False),
        ("op:*", ["stem"], None, False),
        ("conv2d", ["stem"], "conv2d", False),
        ("add_?", ["add_1"], "add", True),
    ],
)
def test_matching(pattern: str, names: list[str], op: str | None, matches: bool) -> None:
    assert Rule(pattern, ()).matches(names, op) is matches


@pytest.mark.parametrize(
    ("specific", "text"),
    [
        (3, "W.SPECIFIC: expected patterns with settings, or a list of such, got 3"),
        (["conv1"], "W.SPECIFIC: expected patterns with settings, got 'conv1'"),
        (
            {"conv1": 8},
            "W.SPECIFIC['conv1']: expected a list [subkey, value, ...] or keys with values, got 8",
        ),
        (
            {"conv1": ["QUANTIZER.BIT"]},
            "W.SPECIFIC['conv1']: expected pairs of subkey and value, got ['QUANTIZER.BIT']; "
            "'QUANTIZER.BIT' has no value",
        ),
        (
            {"conv1": [8, "QUANTIZER.BIT"]},
            "W.SPECIFIC['conv1']: expected a subkey such as QUANTIZER.BIT, got 8",
        ),
        ({"": []}, "W.SPECIFIC: expected a pattern such as conv1, layer1.* or op:conv2d, got ''"),
        ({"op:": []}, "W.SPECIFIC: expected a pattern such as conv1, layer1.* or op:conv2d, got 'op:'"),
        (
            {"conv1": ["QUANTIZER.BIT", 8, "QUANTIZER.BIT", 4]},
            "W.SPECIFIC['conv1'].QUANTIZER.BIT: expected each key once, got 4; it is given twice",
        ),
        (
            {"conv1": ["QUANTIZER", 4, "QUANTIZER.BIT", 8]},
            "W.SPECIFIC['conv1'].QUANTIZER.BIT: expected each key once, got 8; it is given twice",
        ),
        ({"conv1": ["QUANTIZER", 4]}, "W.SPECIFIC['conv1'].QUANTIZER: expected keys with values, got 4"),
        (
            {"conv1": ["QUANTIZER.BITT", 4]},
            "W.SPECIFIC['conv1'].QUANTIZER.BITT: unknown key; did you mean 'BIT'?",
        ),
        (
            {"conv1": ["SPECIFIC", []]},
            "W.SPECIFIC['conv1'].SPECIFIC: unknown key; there are: QSCHEME, GROUP_SIZE, QUANTIZER, OBSERVER",
        ),
        (
            [{}, {"conv1": ["QSCHEME", "affine"]}],
            "W.SPECIFIC[1]['conv1'].QSCHEME: expected one of per-tensor-symmetric, per-tensor-affine, "
            "per-channel-symmetric, per-channel-affine, per-group-symmetric, per-group-affine, got 'affine'",
        ),
        (
            {"conv1": ["QUANTIZER.BIT", 4, "QUANTIZER.DTYPE", "fp8_e4m3"]},
            "W.SPECIFIC['conv1'].QUANTIZER: expected BIT: 8 or none with DTYPE: fp8_e4m3, "
            "got {'BIT': 4, 'DTYPE': 'fp8_e4m3'}; fp8_e4m3 has 8 bits",
        ),
    ],
)
def test_other_forms_are_refused(specific: object, text: str) -> None:
    assert complaint(specific) == f"qconfig: {text}"


def test_additions_are_for_the_whole_model() -> None:
    assert complaint({"add_1": ["QADD.ENABLE_QUANT", True]}, side="A") == (
        "qconfig: A.SPECIFIC['add_1'].QADD: unknown key; it applies to the complete model: set A.QADD.ENABLE_QUANT"
    )
