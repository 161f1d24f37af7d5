"""Everything wrong at once, and nothing that is not wrong."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.engine.problems import ConfigProblems
from sparsebit.config.quantization.qconfig import QConfig, load_qconfig
from tests.config.strategies import activations, configs, plain_config, weights


def complaints(data: dict[str, Any]) -> list[str]:
    try:
        QConfig.read(data, "w8.yaml", {})
    except ConfigProblems as error:
        return [str(problem) for problem in error.problems]
    return []


def test_a_good_config_passes() -> None:
    assert complaints(plain_config()) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            plain_config(W=weights(QUANTIZER={"BITT": 8})),
            "W.QUANTIZER.BITT: unknown key; did you mean 'BIT'?",
        ),
        (plain_config(w=1), "w: unknown key; did you mean 'W'?"),
        (plain_config(SCHEDULE={"fuse_bn": True}), "SCHEDULE.fuse_bn: unknown key; did you mean 'FUSE_BN'?"),
        (
            plain_config(SCHEDULE={"X": True}),
            "SCHEDULE.X: unknown key; there are: FUSE_BN, BN_TUNING, DISABLE_UNNECESSARY_QUANT, RECOVERY",
        ),
        (
            plain_config(W=weights(OBSERVER={"LAYOUT": "NLC"})),
            "W.OBSERVER.LAYOUT: unknown key; only activations have it",
        ),
        (plain_config(A=activations(GROUP_SIZE=8)), "A.GROUP_SIZE: unknown key; only weights have it"),
        (
            plain_config(W=weights(TARGET=1)),
            "W.TARGET: unknown key; there are: QSCHEME, GROUP_SIZE, QUANTIZER, OBSERVER, SPECIFIC",
        ),
        (plain_config(W=3), "W: expected keys with values, got 3"),
        (plain_config(A=activations(QUANTIZER=[])), "A.QUANTIZER: expected keys with values, got []"),
        (
            plain_config(W=weights(QUANTIZER={})),
            "W.QUANTIZER.BIT: required, expected an integer from 2 to 16, 0 for float, fp8_e4m3 or fp8_e5m2",
        ),
        (
            plain_config(A=activations(QSCHEME=None)),
            "A.QSCHEME: required, expected one of per-tensor-symmetric, per-tensor-affine, per-channel-symmetric, "
            "per-channel-affine, per-token-symmetric, per-token-affine",
        ),
        (plain_config(W={**weights(), 3: 4}), "W.3: expected a string as key, got 3"),
    ],
)
def test_one_thing_wrong(data: dict[str, Any], text: str) -> None:
    assert complaints(data) == [text]


def test_everything_wrong_is_told_at_once() -> None:
    data = {
        "BACKEND": "tensorrt",
        "W": {
            "QSCHEME": "per-chanel-symmetric",
            "QUANTIZER": {"BITT": 8},
            "SPECIFIC": [{"fc": ["QUANTIZER.BIT", 99]}],
        },
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 8, "TYPE": "pakt"}},
        "DEVICE": 0,
    }
    assert [text.partition(":")[0] for text in complaints(data)] == [
        "DEVICE",
        "W.QSCHEME",
        "W.QUANTIZER.BITT",
        "W.SPECIFIC['fc'].QUANTIZER.BIT",
        "A.QUANTIZER.TYPE",
        "A.QSCHEME",
    ]


def test_rules_say_nothing_about_what_could_not_be_read() -> None:
    wrong_bits = plain_config(BACKEND="onnxruntime", W=weights(QUANTIZER={"BIT": 99}))
    assert [text.partition(":")[0] for text in complaints(wrong_bits)] == ["W.QUANTIZER.BIT"]
    misspelt = plain_config(
        BACKEND="tensorrt", W=weights(QUANTIZER={"TYP": "pact", "BIT": 8}), A=activations(QSCHEM=3)
    )
    assert [text.partition(":")[0] for text in complaints(misspelt)] == ["W.QUANTIZER.TYP", "A.QSCHEM"]


def test_thousands_of_unknown_keys_and_keys_of_any_length_end_in_a_short_message() -> None:
    with pytest.raises(ConfigProblems) as caught:
        QConfig.read(plain_config(**{f"KEY{index}": 1 for index in range(20_000)}), "w8.yaml", {})
    assert len(caught.value.problems) == 20_000 and len(str(caught.value)) < 5_000
    (text,) = complaints(plain_config(**{"X" * 10**6: 1}))
    assert len(text) < 300


def test_nothing_at_all_asks_for_what_is_required() -> None:
    assert [text.partition(",")[0] for text in complaints({})] == [
        "W.QSCHEME: required",
        "W.QUANTIZER.BIT: required",
        "A.QSCHEME: required",
        "A.QUANTIZER.BIT: required",
    ]


def test_problems_name_the_source_their_key_came_from() -> None:
    data = plain_config(W=weights(QUANTIZER={"BIT": 99}), DEVICE=3)
    with pytest.raises(ConfigProblems) as caught:
        QConfig.read(data, "w8.yaml", {"W.QUANTIZER": "override 'W.QUANTIZER={BIT: 99}'"})
    assert [problem.source for problem in caught.value.problems] == ["", "override 'W.QUANTIZER={BIT: 99}'"]


GARBAGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just("fp8_e4m3")
    | st.just("BIT"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["W", "QUANTIZER", "BIT", "SPECIFIC", "x.y", ""]) | st.integers(),
            inner,
            max_size=3,
        )
    ),
    max_leaves=4,
)


@given(configs(), st.data())
def test_whatever_is_written_gives_a_config_or_a_config_error(
    data: dict[str, Any], draw: st.DataObject
) -> None:
    section: Any = data
    while True:
        key = draw.draw(st.sampled_from([*section, "NEW"]))
        if not isinstance(section.get(key), dict) or draw.draw(st.booleans()):
            break
        section = section[key]
    section[key] = draw.draw(GARBAGE)
    with contextlib.suppress(ConfigProblems):
        config = QConfig(**data)
        assert load_qconfig(config.to_dict()) == config
