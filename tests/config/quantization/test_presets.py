"""Presets: each loads, says what its name says, and passes the rules of the backends it is meant for."""

from __future__ import annotations

import pytest

from sparsebit.config.quantization.presets import preset_names, preset_text
from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.errors import ConfigError


def test_what_there_is() -> None:
    assert preset_names() == ("int8_onnxruntime", "int8_openvino", "int8_tensorrt", "w4a16_g128", "w4a8")


@pytest.mark.parametrize("name", preset_names())
def test_each_loads_and_explains_itself(name: str) -> None:
    config = load_qconfig(name)
    assert config.source == name
    assert preset_text(name).startswith("# ")
    assert load_qconfig(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "weight", "activation"),
    [
        (
            "int8_onnxruntime",
            "int8 per-channel-symmetric, uniform, minmax",
            "uint8 per-tensor-affine, uniform, mse",
        ),
        (
            "int8_openvino",
            "int8 per-channel-symmetric, uniform, minmax",
            "uint8 per-tensor-affine, uniform, mse",
        ),
        (
            "int8_tensorrt",
            "int8 per-channel-symmetric, uniform, minmax",
            "int8 per-tensor-symmetric, uniform, mse",
        ),
        ("w4a8", "int4 per-channel-symmetric, uniform, mse", "uint8 per-tensor-affine, uniform, mse"),
        ("w4a16_g128", "int4 per-group-symmetric of 128, uniform, mse", "float"),
    ],
)
def test_what_each_asks_for(name: str, weight: str, activation: str) -> None:
    config = load_qconfig(name)
    assert str(config.spec_for("W", names=["middle"], op="linear")) == weight
    assert str(config.spec_for("A", names=["middle"], op="linear")) == activation


def test_first_and_last_layers() -> None:
    ends = {"names": ["head"], "op": "linear", "first_or_last": True}
    assert load_qconfig("w4a8").spec_for("W", **ends).bits == 8  # type: ignore[arg-type]
    assert not load_qconfig("w4a16_g128").spec_for("W", **ends).enabled  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt"])
def test_weights_in_groups_run_on_every_backend(backend: str) -> None:
    assert backend == load_qconfig("w4a16_g128", [f"BACKEND={backend}"]).BACKEND


def test_an_unknown_one() -> None:
    with pytest.raises(ConfigError, match="w4a9: no such preset"):
        preset_text("w4a9")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("int8_ort", "int8_onnxruntime"), ("int8-trt", "int8_tensorrt"), ("INT8_ov", "int8_openvino")],
)
def test_short_names_of_runtimes_are_understood(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"no such preset or file; did you mean '{meant}'"):
        load_qconfig(name)
    with pytest.raises(ConfigError, match=r"BACKEND: expected one of .*; did you mean 'onnxruntime'"):
        load_qconfig("w4a8", ["BACKEND=ort"])
