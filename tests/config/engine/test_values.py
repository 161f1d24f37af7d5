"""Single values: every spelling that is accepted, and what is said about the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.engine import values
from sparsebit.config.engine.section import keys_of
from sparsebit.config.engine.values import Refused
from sparsebit.config.quantization import sections
from sparsebit.config.quantization.plugins import OBSERVER_RULES, QUANTIZER_RULES

QSCHEME_W, QSCHEME_A = (
    keys_of(kind)["QSCHEME"].read for kind in (sections.WeightSettings, sections.ActivationSettings)
)


def read(kind: Any, value: object) -> Any:
    return kind.parse(value)


def complaint(kind: Any, value: object) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        read(kind, value)
    return caught.value.expected, caught.value.hint


@given(st.integers(2, 16))
def test_bits_in_every_spelling(bits: int) -> None:
    assert {read(sections.BITS, form) for form in (bits, float(bits), str(bits), f"{bits}.0")} == {bits}


@pytest.mark.parametrize(
    "value", [1, 17, -1, 8.5, "eight", True, False, None, [8], float("nan"), 10**400, "1e999"]
)
def test_other_bits_are_refused(value: object) -> None:
    assert complaint(sections.BITS, value)[0] == "an integer from 2 to 16, 0 for float, fp8_e4m3 or fp8_e5m2"


def test_a_misspelt_float_type_is_recognised() -> None:
    assert complaint(sections.BITS, "fp8_e4m4")[1] == "did you mean 'fp8_e4m3'?"


@given(st.floats(1e-6, 1e6))
def test_numbers_in_every_spelling(value: float) -> None:
    assert read(values.POSITIVE, value) == read(values.POSITIVE, repr(value)) == value
    assert read(values.POSITIVE, "1e-3") == 0.001


@pytest.mark.parametrize(
    ("value", "kind"), [(0, values.POSITIVE), (1, values.FRACTION), (-0.1, values.FRACTION)]
)
def test_numbers_outside_are_refused(value: float, kind: Any) -> None:
    expected = "a number above 0" if kind is values.POSITIVE else "at least 0 and less than 1"
    assert complaint(kind, value)[0] == expected


@pytest.mark.parametrize(
    ("value", "flag"), [(True, True), ("True", True), ("false", False), (0, False), (1, True)]
)
def test_flags(value: object, flag: bool) -> None:
    assert read(values.FLAG, value) is flag


@pytest.mark.parametrize("value", ["yes please", 2, None, [], 0.5])
def test_other_flags_are_refused(value: object) -> None:
    assert complaint(values.FLAG, value)[0] == "true or false"


@pytest.mark.parametrize(
    "value", ["per-channel-affine", "PER-CHANNEL-AFFINE", "per_channel_affine", " Per Channel Affine"]
)
def test_words_in_any_capitals(value: str) -> None:
    assert read(QSCHEME_W, value) == "per-channel-affine"


def test_a_scheme_of_the_other_side_is_recognised() -> None:
    assert complaint(QSCHEME_A, "per-group-affine")[1] == "per-group-affine is for weights only"
    assert complaint(QSCHEME_W, "per-token-affine")[1] == "per-token-affine is for activations only"


def test_other_words_are_refused_with_the_nearest() -> None:
    assert complaint(sections.BACKEND, "onnx-runtime") == (
        "one of onnxruntime, openvino, tensorrt, virtual",
        "did you mean 'onnxruntime'?",
    )
    assert complaint(values.one_of(("NCHW", "NLC")), 3) == ("one of NCHW, NLC", "")
    assert complaint(QUANTIZER_RULES.reader(), "lsqq") == ("the name of a quantizer", "did you mean 'lsq'?")
    assert complaint(OBSERVER_RULES.reader(), 7)[1].startswith("there are: aciq, kl_histogram, minmax")


@pytest.mark.parametrize(
    ("value", "patterns"),
    [
        ([], ()),
        (["a", "b.*"], ("a", "b.*")),
        ("blocks.*", ("blocks.*",)),
        ('("a", "b")', ("a", "b")),
        ("['a']", ("a",)),
        ("[ab]c", ("[ab]c",)),
        ("('a')", ("('a')",)),
    ],
)
def test_patterns(value: object, patterns: tuple[str, ...]) -> None:
    assert read(values.PATTERNS, value) == patterns


@pytest.mark.parametrize("value", [3, [3], [""], {"a": 1}])
def test_other_patterns_are_refused(value: object) -> None:
    assert complaint(values.PATTERNS, value)[0] == "a list of patterns such as [blocks.*.drop_path]"


@pytest.mark.parametrize(
    ("value", "found"),
    [("float", "float"), ("Float", "float"), (0, "float"), (8, 8), ("4", 4), ("FP8_E4M3", "fp8_e4m3")],
)
def test_first_last(value: object, found: object) -> None:
    assert read(sections.FIRST_LAST, value) == found


@pytest.mark.parametrize("value", [1, "half", True, []])
def test_other_first_last_is_refused(value: object) -> None:
    assert complaint(sections.FIRST_LAST, value)[0] == "an integer from 2 to 16, fp8_e4m3, fp8_e5m2, or float"


def test_group_sizes() -> None:
    assert read(values.whole(2), "128") == 128
    assert complaint(values.whole(2), 1)[0] == "an integer of at least 2"


def test_devices() -> None:
    assert read(values.DEVICE, "CUDA:1") == "cuda:1"
    assert complaint(values.DEVICE, 0)[0] == "auto or a device such as cpu, cuda or cuda:1"


def test_options() -> None:
    assert read(values.OPTIONS, {"window": 8, "mode": "fast"}) == {"window": 8, "mode": "fast"}
    assert complaint(values.OPTIONS, [1])[0] == "names with values, such as {window: 8}"
    assert complaint(values.OPTIONS, {"a b": 1})[1] == "'a b' is not a name"
    assert complaint(values.OPTIONS, {"a:1": None})[1] == "write 'a: 1', with a space after the colon"
    assert complaint(values.OPTIONS, {"a": [1]})[1] == "'a' holds [1]"
    assert complaint(values.OPTIONS, {"a": float("nan")})[1] == "'a' holds nan"
