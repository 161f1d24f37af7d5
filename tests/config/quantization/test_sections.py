"""Every key: its name, its default, and how sections are read."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from sparsebit.config.engine.nested import leaves
from sparsebit.config.engine.section import Findings, build, keys_of, read_keys
from sparsebit.config.pruning.sconfig import SConfig
from sparsebit.config.quantization.qconfig import QConfig, load_qconfig
from sparsebit.config.quantization.sections import QuantizerSection
from sparsebit.errors import ConfigError
from tests.config.strategies import activations, plain_config, weights

DEFAULTS = {
    "DEVICE": "auto",
    "BACKEND": "virtual",
    "SKIP_TRACE_MODULES": [],
    "SCHEDULE.FUSE_BN": False,
    "SCHEDULE.BN_TUNING": False,
    "SCHEDULE.DISABLE_UNNECESSARY_QUANT": True,
    "W.QUANTIZER.TYPE": "uniform",
    "W.QUANTIZER.DISABLE": False,
    "SCHEDULE.RECOVERY": [],
    "W.QUANTIZER.DTYPE": "int",
    "W.OBSERVER.TYPE": "minmax",
    "W.OBSERVER.PERCENTILE.ALPHA": 0.001,
    "W.OBSERVER.ACIQ.DISTRIBUTION": "gaus",
    "W.GROUP_SIZE": 128,
    "W.SPECIFIC": [],
    "A.QUANTIZER.TYPE": "uniform",
    "A.QUANTIZER.DISABLE": False,
    "A.QUANTIZER.DTYPE": "int",
    "A.QUANTIZER.PACT.ALPHA_VALUE": 10.0,
    "A.OBSERVER.TYPE": "minmax",
    "A.OBSERVER.PERCENTILE.ALPHA": 0.001,
    "A.OBSERVER.ACIQ.DISTRIBUTION": "gaus",
    "A.OBSERVER.MOVING_AVERAGE.EMA_RATIO": 0.9,
    "A.OBSERVER.LAYOUT": "NCHW",
    "A.SPECIFIC": [],
}


def test_defaults() -> None:
    given = dict(leaves(plain_config()))
    found = dict(leaves(load_qconfig(plain_config()).to_dict()))
    assert {key: value for key, value in found.items() if key not in given} == DEFAULTS


def test_a_key_or_section_without_a_value_keeps_its_default() -> None:
    empty: dict[str, Any] = {"SCHEDULE": None, "FIRST_LAST": None, "DEVICE": None}
    side = activations(OBSERVER={"TYPE": None, "ACIQ": None}, QADD=None, SPECIFIC=None)
    assert load_qconfig(plain_config(A=side, **empty)) == load_qconfig(plain_config())


@pytest.mark.parametrize("alpha", [6, 6.0, "6", "6.0"])
def test_whole_and_real_numbers_for_each_other(alpha: object) -> None:
    side = activations(QUANTIZER={"BIT": 8.0, "PACT": {"ALPHA_VALUE": alpha}})
    assert load_qconfig(plain_config(A=side)).A.QUANTIZER.PACT.ALPHA_VALUE == 6.0


@pytest.mark.parametrize(
    ("section", "bit", "dtype"),
    [
        ({"BIT": 4}, 4, "int"),
        ({"BIT": "fp8_e4m3"}, 8, "fp8_e4m3"),
        ({"BIT": "FP8_E5M2"}, 8, "fp8_e5m2"),
        ({"DTYPE": "fp8_e4m3"}, 8, "fp8_e4m3"),
        ({"DTYPE": "fp8_e4m3", "BIT": 8}, 8, "fp8_e4m3"),
        ({"DTYPE": "fp8_e4m3", "BIT": 0}, 0, "fp8_e4m3"),
        ({"DTYPE": "fp8_e4m3", "BIT": "fp8-e4m3"}, 8, "fp8_e4m3"),
        ({"DTYPE": "int", "BIT": 16}, 16, "int"),
    ],
)
def test_bit_and_dtype_name_one_thing(section: dict[str, Any], bit: int, dtype: str) -> None:
    read = build(QuantizerSection, read_keys(QuantizerSection, section, "", Findings()))
    assert (bit, dtype) == (read.BIT, read.DTYPE)


def test_a_float_type_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_qconfig(plain_config(W=weights(QUANTIZER={"BIT": 4, "DTYPE": "fp8_e5m2"})))
    assert str(caught.value) == (
        "qconfig: W.QUANTIZER: expected BIT: 8 or none with DTYPE: fp8_e5m2, "
        "got {'BIT': 4, 'DTYPE': 'fp8_e5m2'}; fp8_e5m2 has 8 bits"
    )


def test_two_float_types_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_qconfig(plain_config(W=weights(QUANTIZER={"BIT": "fp8_e4m3", "DTYPE": "int"})))
    assert str(caught.value) == (
        "qconfig: W.QUANTIZER: expected BIT and DTYPE to agree, "
        "got {'BIT': 'fp8_e4m3', 'DTYPE': 'int'}; BIT says fp8_e4m3, DTYPE says int"
    )


def test_nothing_can_be_changed() -> None:
    config = load_qconfig("w4a8")
    with pytest.raises(FrozenInstanceError):
        config.W.QUANTIZER.BIT = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        config.BACKEND = "tensorrt"  # type: ignore[misc]


@pytest.mark.parametrize("section", [QConfig, SConfig])
def test_every_key_says_what_it_means(section: Any) -> None:
    for name, declared in keys_of(section).items():
        assert name.isupper() and declared.doc.endswith("."), name
        if declared.section is not None:
            test_every_key_says_what_it_means(declared.section)
