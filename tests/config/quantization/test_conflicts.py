"""What goes together: every refusal once, and no refusal too many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.quantization.plugins import RULES, names_for
from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.errors import ConfigError
from sparsebit.targets import TARGETS
from sparsebit.targets.schemes import SCHEMES_OF, SIDES, Scheme, Side
from tests.config.strategies import activations, plain_config, weights


def complaints(**sections: Any) -> list[str]:
    try:
        load_qconfig(plain_config(**sections))
    except ConfigError as error:
        return [str(problem) for problem in error.problems]  # type: ignore[attr-defined]
    return []


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        (
            {"A": activations(QUANTIZER={"BIT": "fp8_e4m3"})},
            "A.QSCHEME: expected a symmetric scheme with fp8_e4m3, got 'per-tensor-affine'; "
            "an 8-bit float has a sign and a zero of its own",
        ),
        (
            {"W": weights(QUANTIZER={"BIT": "fp8_e4m3", "TYPE": "lsq"})},
            "W.QUANTIZER.TYPE: expected a quantizer for fp8_e4m3 (uniform), got 'lsq'; lsq works on integers",
        ),
        (
            {"W": weights(QUANTIZER={"BIT": 8, "TYPE": "pact"})},
            "W.QUANTIZER.TYPE: expected a quantizer for weights (adaround, dorefa, lsq, lsq+, uniform), got 'pact'; "
            "PACT learns one clipping value for a whole activation",
        ),
        (
            {"A": activations(QUANTIZER={"BIT": 8, "TYPE": "adaround"})},
            "A.QUANTIZER.TYPE: expected a quantizer for activations (dorefa, lsq, lsq+, pact, uniform), "
            "got 'adaround'; AdaRound chooses how weights are rounded",
        ),
        (
            {"A": activations(QSCHEME="per-channel-affine", QUANTIZER={"BIT": 8, "TYPE": "pact"})},
            "A.QSCHEME: expected per-tensor-symmetric or per-tensor-affine with quantizer pact, "
            "got 'per-channel-affine'; PACT learns one clipping value for a whole activation",
        ),
        (
            {"A": activations(QSCHEME="per-tensor-symmetric", QUANTIZER={"BIT": 8, "TYPE": "lsq+"})},
            "A.QSCHEME: expected per-tensor-affine with quantizer lsq+, got 'per-tensor-symmetric'; "
            "LSQ+ is defined for per-channel-symmetric weights and per-tensor-affine activations",
        ),
        (
            {"W": weights(OBSERVER={"TYPE": "moving_average"})},
            "W.OBSERVER.TYPE: expected an observer for weights (aciq, kl_histogram, minmax, mse, percentile), "
            "got 'moving_average'; it averages over samples, and a weight is the same for all of them",
        ),
        (
            {"A": activations(QSCHEME="per-token-affine", OBSERVER={"TYPE": "kl"})},
            "A.QSCHEME: expected per-tensor-symmetric, per-tensor-affine, per-channel-symmetric or "
            "per-channel-affine with observer kl_histogram, got 'per-token-affine'; the range of each token "
            "is measured when it is quantized; nothing can be learned or measured before",
        ),
        (
            {"A": activations(OBSERVER={"TYPE": "percentile", "OPTIONS": {"alpha": 0.1}})},
            "A.OBSERVER.OPTIONS.alpha: expected OBSERVER.PERCENTILE.ALPHA for this, got 'alpha'; "
            "it has a dedicated key",
        ),
        (
            {"A": activations(OBSERVER={"OPTIONS": {"bins": 9}})},
            "A.OBSERVER.OPTIONS.bins: expected an option of minmax, got 'bins'; minmax has no options",
        ),
        (
            {"SCHEDULE": {"BN_TUNING": True}, "W": weights(QSCHEME="per-tensor-symmetric")},
            "W.QSCHEME: expected per-channel-symmetric or per-channel-affine with SCHEDULE.BN_TUNING, "
            "got 'per-tensor-symmetric'; rule: batch norm is folded into the scale of each channel afterwards",
        ),
        (
            {"BACKEND": "tensorrt"},
            "A.QSCHEME: expected per-tensor-symmetric with BACKEND tensorrt, got 'per-tensor-affine'; "
            "rule: tensorrt activations are symmetric with one scale per tensor: it refuses zero points",
        ),
        (
            {"BACKEND": "onnxruntime", "A": activations(QUANTIZER={"BIT": 16})},
            "A.QUANTIZER.BIT: expected 2 to 8 bits with BACKEND onnxruntime, got 16; "
            "rule: onnxruntime activations have at most 8 bits; wider ones run in float",
        ),
        (
            {"BACKEND": "onnxruntime", "A": activations(QSCHEME="per-channel-affine")},
            "A.QSCHEME: expected per-tensor-symmetric or per-tensor-affine with BACKEND onnxruntime, "
            "got 'per-channel-affine'; rule: onnxruntime activations have one scale per tensor; "
            "its convolutions fail on more",
        ),
        (
            {"BACKEND": "onnxruntime", "W": weights(QSCHEME="per-group-symmetric", GROUP_SIZE=48)},
            "W.GROUP_SIZE: expected 16, 32, 64, 128 or 256 with BACKEND onnxruntime, got 48; "
            "rule: onnxruntime reads groups of these sizes only; others are turned back into float",
        ),
        (
            {"BACKEND": "openvino", "W": weights(QUANTIZER={"DTYPE": "fp8_e5m2"})},
            "W.QUANTIZER.DTYPE: expected int with BACKEND openvino, got 'fp8_e5m2'; "
            "rule: openvino runs integers on a CPU; fp8 weights are turned back into float",
        ),
        (
            {"FIRST_LAST": 16, "BACKEND": "openvino", "A": activations(QUANTIZER={"BIT": 0})},
            "FIRST_LAST: for weights, expected 2 to 8 bits with BACKEND openvino, got 16; "
            "rule: openvino weights have at most 8 bits; wider ones are turned back into float",
        ),
        (
            {"BACKEND": "openvino", "W": weights(SPECIFIC={"fc": ["QUANTIZER.BIT", 12]})},
            "W.SPECIFIC['fc'].QUANTIZER.BIT: expected 2 to 8 bits with BACKEND openvino, got 12; "
            "rule: openvino weights have at most 8 bits; wider ones are turned back into float",
        ),
        (
            {
                "A": activations(
                    SPECIFIC={"fc": ["QSCHEME", "per-channel-affine"]}, QUANTIZER={"TYPE": "pact", "BIT": 8}
                )
            },
            "A.SPECIFIC['fc'].QSCHEME: expected per-tensor-symmetric or per-tensor-affine with quantizer pact, "
            "got 'per-channel-affine'; PACT learns one clipping value for a whole activation",
        ),
        (
            {"W": weights(SPECIFIC={"fc": ["QUANTIZER.TYPE", "lsq+"]}, QSCHEME="per-tensor-symmetric")},
            "W.SPECIFIC['fc']: expected per-channel-symmetric with quantizer lsq+, got 'per-tensor-symmetric'; "
            "LSQ+ is defined for per-channel-symmetric weights and per-tensor-affine activations",
        ),
    ],
)
def test_refusals(sections: dict[str, Any], text: str) -> None:
    assert complaints(**sections) == [text]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["quantizer", "observer"])
def test_names_work_exactly_where_their_rules_say(kind: Any, side: Side) -> None:
    for name, rule in RULES[kind].items():
        for scheme in SCHEMES_OF[side]:
            section = {"QSCHEME": scheme, "QUANTIZER": {"BIT": 8}, "OBSERVER": {}}
            section[kind.upper()] = {**section[kind.upper()], "TYPE": name}  # type: ignore[dict-item]
            assert (not complaints(**{side: section})) == (scheme in rule.schemes.get(side, ()))


@given(
    st.sampled_from([name for name in TARGETS if name != "virtual"]),
    st.sampled_from(SIDES),
    st.sampled_from(["fp8_e4m3", "fp8_e5m2", *range(2, 17)]),
    st.data(),
)
def test_backends_take_exactly_their_rows(backend: str, side: Side, bits: Any, data: st.DataObject) -> None:
    scheme: Scheme = data.draw(st.sampled_from(SCHEMES_OF[side]))
    section: dict[str, Any] = {"QSCHEME": scheme, "QUANTIZER": {"BIT": bits}}
    size = data.draw(st.sampled_from([16, 48, 128]))
    if side == "W":
        section["GROUP_SIZE"] = size
    off = {"QSCHEME": "per-tensor-symmetric", "QUANTIZER": {"BIT": 0}}
    dtype, width = (bits, 8) if isinstance(bits, str) else ("int", bits)
    possible = dtype == "int" or scheme.endswith("symmetric")
    taken = any(
        row.dtype == dtype
        and width in row.bits
        and scheme in row.schemes
        and ("group" not in scheme or row.group_sizes is None or size in row.group_sizes)
        for row in TARGETS[backend].accepts[side].rows
    )
    both = {"W": off, "A": off, side: section}
    assert (not complaints(BACKEND=backend, **both)) == (possible and taken)


def test_what_is_off_is_not_checked() -> None:
    wrong = {"QSCHEME": "per-token-affine", "QUANTIZER": {"TYPE": "pact", "BIT": 16, "DISABLE": True}}
    assert complaints(BACKEND="tensorrt", A=wrong) == []
    assert complaints(BACKEND="tensorrt", A={**wrong, "QUANTIZER": {"BIT": 0}}) == []


def test_a_base_that_is_wrong_is_not_told_again_for_each_rule() -> None:
    side = activations(SPECIFIC={"a": ["QUANTIZER.BIT", 7], "b": ["OBSERVER.TYPE", "mse"]})
    found = complaints(BACKEND="tensorrt", FIRST_LAST=8, A=side)
    assert [text.partition(":")[0] for text in found] == ["A.QSCHEME"]


def test_two_rules_that_only_go_together_are_left_until_the_layers_are_known() -> None:
    side = weights(
        QSCHEME="per-tensor-symmetric",
        SPECIFIC=[{"op:conv2d": ["QUANTIZER.TYPE", "lsq+"]}, {"stem": ["QSCHEME", "per-channel-symmetric"]}],
    )
    config = load_qconfig(plain_config(W=side))
    assert config.spec_for("W", names=["stem"], op="conv2d").quantizer == "lsq+"
    with pytest.raises(ConfigError) as caught:
        config.spec_for("W", names=["layer1.conv", "layer1_conv"], op="conv2d")
    assert str(caught.value) == (
        "qconfig: W of layer 'layer1.conv': QSCHEME after 'op:conv2d', expected per-channel-symmetric with quantizer "
        "lsq+, got 'per-tensor-symmetric'; LSQ+ is defined for per-channel-symmetric weights and per-tensor-affine "
        "activations"
    )


def test_names_for_one_side() -> None:
    assert set(names_for("quantizer", "W")) | set(names_for("quantizer", "A")) == set(RULES["quantizer"])
