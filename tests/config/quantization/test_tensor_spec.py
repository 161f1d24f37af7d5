"""Specs are values: equal when they ask for the same, hashable, and never nonsense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.engine.options import Options
from sparsebit.config.quantization.tensor_spec import TensorSpec
from sparsebit.errors import ConfigError

VALUES = st.integers() | st.booleans() | st.text() | st.floats(allow_nan=False)


@given(st.dictionaries(st.text(), VALUES))
def test_options_are_the_mapping_they_were_made_from(values: dict[str, Any]) -> None:
    options = Options(values)
    assert options == values
    assert dict(options) == values
    assert len(options) == len(values)
    assert hash(options) == hash(Options(dict(reversed(values.items()))))


def test_equal_specs_count_once_however_their_options_were_given() -> None:
    specs = {
        TensorSpec(observer="percentile", observer_options={"alpha": 0.1}),
        TensorSpec(observer="percentile", observer_options=Options(alpha=0.1)),
        TensorSpec(observer="percentile", observer_options={"alpha": 0.2}),
    }
    assert len(specs) == 2


def test_a_spec_does_not_see_later_changes_of_the_options_it_was_given() -> None:
    options = {"alpha": 0.1}
    spec = TensorSpec(observer_options=options)
    options["alpha"] = 0.2
    assert spec.observer_options["alpha"] == 0.1


@pytest.mark.parametrize(
    ("spec", "codes", "scheme"),
    [
        (TensorSpec(), "int8", "per-tensor-symmetric"),
        (TensorSpec(bits=4, symmetric=False, granularity="channel"), "uint4", "per-channel-affine"),
        (TensorSpec(dtype="fp8_e5m2", granularity="token"), "fp8_e5m2", "per-token-symmetric"),
        (TensorSpec(enabled=False), "float", "per-tensor-symmetric"),
    ],
)
def test_codes_and_scheme(spec: TensorSpec, codes: str, scheme: str) -> None:
    assert (spec.codes, spec.scheme) == (codes, scheme)


def test_one_line_of_text_shows_options() -> None:
    spec = TensorSpec(quantizer="pact", quantizer_options={"alpha_value": 6.0}, symmetric=False)
    assert str(spec) == "uint8 per-tensor-affine, pact(alpha_value=6.0), minmax"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bits": 1}, "bits: expected an integer from 2 to 16, got 1"),
        ({"bits": True}, "bits: expected an integer from 2 to 16, got True"),
        ({"bits": 4, "dtype": "fp8_e4m3"}, "bits: fp8_e4m3 has 8 bits, got 4"),
        ({"dtype": "fp4"}, "dtype: expected one of int, fp8_e4m3, fp8_e5m2, got 'fp4'"),
        ({"granularity": "row"}, "granularity: expected one of tensor, channel, group, token, got 'row'"),
        ({"layout": "NHWC"}, "layout: expected one of NCHW, NLC, got 'NHWC'"),
        (
            {"granularity": "group"},
            "group_size: expected a size with granularity 'group' and None without, got None with 'group'",
        ),
        (
            {"group_size": 64},
            "group_size: expected a size with granularity 'group' and None without, got 64 with 'tensor'",
        ),
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(TensorSpec(), **changes)
    assert str(caught.value) == text
