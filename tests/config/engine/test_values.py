"""Single values: every spelling that is accepted, and what is said about the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sparsebit.config.engine import values


def read(kind: Any, value: object) -> Any:
    return TypeAdapter(kind).validate_python(value)


def complaint(kind: Any, value: object) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        read(kind, value)
    context = caught.value.errors()[0]["ctx"]
    return context["expected"], context["hint"]


@given(st.integers(2, 16))
def test_bits_in_every_spelling(bits: int) -> None:
    assert {read(values.Bits, form) for form in (bits, float(bits), str(bits), f"{bits}.0")} == {bits}


@pytest.mark.parametrize(
    "value", [1, 17, -1, 8.5, "eight", True, False, None, [8], float("nan"), 10**400, "1e999"]
)
def test_other_bits_are_refused(value: object) -> None:
    assert complaint(values.Bits, value)[0] == "an integer from 2 to 16, 0 for off, fp8_e4m3 or fp8_e5m2"


def test_a_misspelt_float_type_is_recognised() -> None:
    assert complaint(values.Bits, "fp8_e4m4")[1] == "did you mean 'fp8_e4m3'?"


@given(st.floats(1e-6, 1e6))
def test_numbers_in_every_spelling(value: float) -> None:
    assert read(values.Positive, value) == read(values.Positive, repr(value)) == value
    assert read(values.Positive, "1e-3") == 0.001


@pytest.mark.parametrize(
    ("value", "kind"), [(0, values.Positive), (1, values.Fraction), (-0.1, values.Fraction)]
)
def test_numbers_outside_are_refused(value: float, kind: Any) -> None:
    wish = "a number above 0" if kind is values.Positive else "a number from 0 up to but not including 1"
    assert complaint(kind, value)[0] == wish


@pytest.mark.parametrize(
    ("value", "flag"), [(True, True), ("True", True), ("false", False), (0, False), (1, True)]
)
def test_flags(value: object, flag: bool) -> None:
    assert read(values.Flag, value) is flag


@pytest.mark.parametrize("value", ["yes please", 2, None, [], 0.5])
def test_other_flags_are_refused(value: object) -> None:
    assert complaint(values.Flag, value)[0] == "true or false"


@pytest.mark.parametrize(
    "value", ["per-channel-affine", "PER-CHANNEL-AFFINE", "per_channel_affine", " Per Channel Affine"]
)
def test_words_in_any_capitals(value: str) -> None:
    assert read(values.WeightScheme, value) == "per-channel-affine"


def test_a_scheme_of_the_other_side_is_recognised() -> None:
    assert complaint(values.ActivationScheme, "per-group-affine")[1] == "per-group-affine is for weights only"
    assert complaint(values.WeightScheme, "per-token-affine")[1] == "per-token-affine is for activations only"


def test_other_words_are_refused_with_the_nearest() -> None:
    assert complaint(values.Backend, "onnx-runtime") == (
        "one of onnxruntime, openvino, tensorrt, virtual",
        "did you mean 'onnxruntime'?",
    )
    assert complaint(values.TensorLayout, 3) == ("one of NCHW, NLC", "")
    assert complaint(values.QuantizerName, "lsqq") == ("the name of a quantizer", "did you mean 'lsq'?")
    assert complaint(values.ObserverName, 7)[1].startswith("there are: aciq, kl_histogram, minmax")


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
    assert read(values.Patterns, value) == patterns


@pytest.mark.parametrize("value", [3, [3], [""], {"a": 1}])
def test_other_patterns_are_refused(value: object) -> None:
    assert complaint(values.Patterns, value)[0] == "a list of patterns such as [blocks.*.drop_path]"


@pytest.mark.parametrize(
    ("value", "wish"),
    [("float", "float"), ("Float", "float"), (0, "float"), (8, 8), ("4", 4), ("FP8_E4M3", "fp8_e4m3")],
)
def test_first_last(value: object, wish: object) -> None:
    assert read(values.FirstLast, value) == wish


@pytest.mark.parametrize("value", [1, "half", True, []])
def test_other_first_last_is_refused(value: object) -> None:
    assert complaint(values.FirstLast, value)[0] == "an integer from 2 to 16, fp8_e4m3, fp8_e5m2, or float"


def test_group_sizes() -> None:
    assert read(values.GroupSize, "128") == 128
    assert complaint(values.GroupSize, 1)[0] == "an integer of at least 2"


def test_devices() -> None:
    assert read(values.Device, "CUDA:1") == "cuda:1"
    assert complaint(values.Device, 0)[0] == "auto or a device such as cpu, cuda or cuda:1"


def test_options() -> None:
    assert read(values.PlugInOptions, {"window": 8, "mode": "fast"}) == {"window": 8, "mode": "fast"}
    assert complaint(values.PlugInOptions, [1])[0] == "names with values, such as {window: 8}"
    assert complaint(values.PlugInOptions, {"a b": 1})[1] == "'a b' is not a name"
    assert complaint(values.PlugInOptions, {"a": [1]})[1] == "'a' holds [1]"
    assert complaint(values.PlugInOptions, {"a": float("nan")})[1] == "'a' holds nan"
