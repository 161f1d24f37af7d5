"""Patterns that match nothing: found, and answered with the nearest name."""

from __future__ import annotations

import pytest

from sparsebit.config.engine.match import Layer, nearest_name, unmatched_patterns, unmatched_rules
from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.errors import ConfigError
from tests.config.strategies import activations, plain_config, weights

LAYERS = [
    Layer(("conv1", "conv1"), "conv2d"),
    Layer(("layer1.0.conv1", "layer1_0_conv1"), "conv2d"),
    Layer(("layer1.0.bn1", "layer1_0_bn1"), "batch_norm"),
    Layer(("add_1",), "add"),
    Layer(("fc",), "linear"),
    Layer(("odd",)),
]
MODULES = ["", "conv1", "layer1", "layer1.0", "layer1.0.conv1", "layer1.0.bn1", "fc"]


def unmatched(pattern: str) -> list[str]:
    config = load_qconfig(plain_config(W=weights(SPECIFIC={pattern: ["QUANTIZER.BIT", 8]})))
    return [str(problem) for problem in unmatched_rules("W.SPECIFIC", config.W.SPECIFIC, LAYERS)]


@pytest.mark.parametrize(
    "pattern", ["conv1", "layer1.*", "layer1_0_conv1", "*bn?", "op:conv2d", "op:*", "add_1", "*", "odd"]
)
def test_patterns_that_match(pattern: str) -> None:
    assert unmatched(pattern) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("layr1.*", "no layer matches; the nearest name is 'layer1'"),
        ("*.covn1", "no layer matches; the nearest name is 'conv1'"),
        ("layer1_0_conv2", "no layer matches; the nearest name is 'layer1_0_conv1'"),
        ("op:conv3d", "no operator matches; did you mean 'op:conv2d'?"),
        ("op:zzz", "no operator matches; operators are, for example: add, batch_norm, conv2d, linear"),
        ("zzz", "no layer matches; layers are, for example: add_1, conv1, fc, layer1.0.bn1, layer1.0.conv1"),
    ],
)
def test_patterns_that_match_nothing(pattern: str, text: str) -> None:
    assert unmatched(pattern) == [f"W.SPECIFIC[{pattern!r}]: {text}"]


def test_all_of_them_are_raised_at_once() -> None:
    rule = {"hed": ["QUANTIZER.BIT", 8]}
    config = load_qconfig(plain_config(W=weights(SPECIFIC=rule), A=activations(SPECIFIC=rule)))
    with pytest.raises(ConfigError) as caught:
        config.require_matched(iter([Layer(("head",), "linear")]))
    assert str(caught.value) == (
        "qconfig: 2 problems\n"
        "  W.SPECIFIC['hed']: no layer matches; the nearest name is 'head'\n"
        "  A.SPECIFIC['hed']: no layer matches; the nearest name is 'head'"
    )


def test_patterns_of_modules_that_match_nothing() -> None:
    assert [
        str(problem) for problem in unmatched_patterns("IGNORE", ["layer1", "layer2", "zzz"], MODULES)
    ] == [
        "IGNORE['layer2']: no module matches; the nearest name is 'layer1'",
        "IGNORE['zzz']: no module matches; modules are, for example: , conv1, fc, layer1, layer1.0",
    ]


def test_a_model_without_layers() -> None:
    config = load_qconfig(plain_config(W=weights(SPECIFIC={"a": [], "op:b": []})))
    assert [problem.hint for problem in unmatched_rules("W.SPECIFIC", config.W.SPECIFIC, [])] == [
        "the model has no layers",
        "the model has no operators",
    ]


def test_numbers_alone_are_no_advice() -> None:
    assert nearest_name("l0.*", ["layer1.0.conv1"]) is None


def test_a_part_of_a_name_is_told_how_to_match_all_of_it() -> None:
    layers = [Layer(("layer2.0.downsample.0", "layer2_0_downsample_0"), "conv2d"), Layer(("fc",), "linear")]
    config = load_qconfig(plain_config(W=weights(SPECIFIC={"downsample": ["QUANTIZER.BIT", 4]})))
    with pytest.raises(ConfigError) as caught:
        config.require_matched(layers)
    assert str(caught.value) == (
        "qconfig: W.SPECIFIC['downsample']: no layer matches; a pattern must match all of a name; "
        "'*.downsample.*' matches layer2.0.downsample.0"
    )
