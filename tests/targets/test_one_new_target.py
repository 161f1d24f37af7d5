"""One object registered from outside: config, command line, plan, export and check accept the new runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sparsebit.config import load_qconfig, preset_names
from sparsebit.errors import ConfigError, RegistryError
from sparsebit.export import export_onnx
from sparsebit.quantization import QuantModel
from sparsebit.targets import Accepts, OpRule, Row, Target, register_target, unregister_target
from tests.cli.conftest import Cli, cli, place  # noqa: F401

NPU = Target(
    name="my_npu",
    rules={
        "conv2d": OpRule(weight=True, output=True, because="the array multiplies integers"),
        "linear": OpRule(weight=True, because="the same array"),
    },
    fused={"conv2d": frozenset({"relu"})},
    source="its data sheet",
    accepts={
        "W": Accepts(
            rows=(Row(schemes=("per-channel-symmetric",)),),
            bits="my_npu weights have exactly 8 bits",
            scheme="my_npu has one scale per channel",
        ),
        "A": Accepts(
            rows=(Row(schemes=("per-tensor-affine",)),),
            scheme="my_npu has one scale per tensor",
            bits="8 bits only",
        ),
    },
    runtime="onnxruntime",
    kernels={
        "Conv": frozenset({"QLinearConv"}),
        "Gemm": frozenset({"QGemm"}),
        "MatMul": frozenset({"QGemm"}),
    },
)


@pytest.fixture(autouse=True)
def npu() -> Iterator[None]:
    register_target(NPU)
    yield
    unregister_target("my_npu")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Hardswish(), nn.Flatten(), nn.Linear(128, 4)
    ).eval()


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_a_config_takes_its_name_its_preset_and_its_limits() -> None:
    assert "int8_my_npu" in preset_names()
    assert load_qconfig("int8_my_npu").BACKEND == "my_npu"
    with pytest.raises(ConfigError, match="rule: my_npu weights have exactly 8 bits"):
        load_qconfig("int8_my_npu", ["W.QUANTIZER.BIT=4"])
    with pytest.raises(RegistryError, match="already taken"):
        register_target(NPU)


def test_a_misspelt_operator_and_runtime_are_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rules = {**NPU.rules, "conv2": NPU.rules["conv2d"]}
    register_target(replace(NPU, rules=rules, runtime="onnxrt"), replace=True)
    qmodel = QuantModel(net(), "int8_my_npu", example_inputs=(X,))
    assert "my_npu has rules for operators that are not registered: conv2" in caplog.text
    qmodel.calibrate([X], progress=False)
    with pytest.raises(RegistryError, match="no runtime named 'onnxrt'"):
        qmodel.export_onnx(X, tmp_path / "net.onnx")


def test_the_plan_the_file_and_its_check_follow_it(tmp_path: Path) -> None:
    qmodel = QuantModel(net(), "int8_my_npu", example_inputs=(X,))
    assert qmodel.plan.target == "my_npu"
    left = {edge.consumer: edge.reason for edge in qmodel.plan.edges if edge.tensor is None}
    assert left == {"_1": "it is computed inside _0"}
    qmodel.calibrate([X], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    done = export_onnx(qmodel, X, tmp_path / "net.onnx")
    assert done.exported.target == "my_npu" and done.report is not None and done.report.ok
    assert {op.runs_as for op in done.report.ops} >= {"QLinearConv"} and not done.report.fallbacks


def test_the_command_line_offers_it(cli: Cli, place: Path) -> None:  # noqa: F811
    config = load_qconfig("int8_my_npu").to_yaml()
    (place / "npu.yaml").write_text(config)
    assert cli("schema", "int8_my_npu").code == 0
    done = cli(
        "export", "net.py:make", "--input", "1x3x8x8", "--target", "my_npu", "-o", "net.onnx", "--json"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert (place / "net.onnx").exists()
