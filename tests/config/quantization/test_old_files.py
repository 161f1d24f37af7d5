"""Files as they were written for the first Sparsebit: twelve, with every key it had, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparsebit.config.quantization.plugins import RULES
from sparsebit.config.quantization.qconfig import load_qconfig

FILES = sorted((Path(__file__).parent / "old").glob("*.yaml"))

# Every key there was.
KEYS = {
    "DEVICE",
    "BACKEND",
    "SKIP_TRACE_MODULES",
    "SCHEDULE.FUSE_BN",
    "SCHEDULE.BN_TUNING",
    "SCHEDULE.DISABLE_UNNECESSARY_QUANT",
    "A.QUANTIZER.PACT.ALPHA_VALUE",
    "A.OBSERVER.MOVING_AVERAGE.EMA_RATIO",
    "A.OBSERVER.LAYOUT",
    "A.QADD.ENABLE_QUANT",
} | {
    f"{side}.{key}"
    for side in "WA"
    for key in (
        "QSCHEME",
        "QUANTIZER.TYPE",
        "QUANTIZER.DISABLE",
        "QUANTIZER.BIT",
        "OBSERVER.TYPE",
        "OBSERVER.PERCENTILE.ALPHA",
        "OBSERVER.ACIQ.DISTRIBUTION",
        "SPECIFIC",
    )
}


def keys_in(data: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, value in data.items():
        path = f"{prefix}{key}"
        found |= keys_in(value, f"{path}.") if isinstance(value, dict) else {path}
    return found


def test_there_are_twelve_and_they_use_every_key() -> None:
    assert len(FILES) == 12
    used = set().union(*(keys_in(yaml.safe_load(path.read_text())) for path in FILES))
    assert used == KEYS


def test_they_name_every_quantizer_observer_and_scheme_there_was() -> None:
    configs = [load_qconfig(path) for path in FILES]
    sides = [side for config in configs for side in (config.W, config.A)]
    rules = [dict(rule.settings) for side in sides for rule in side.SPECIFIC]
    quantizers = {side.QUANTIZER.TYPE for side in sides} | {rule.get("QUANTIZER.TYPE") for rule in rules}
    assert quantizers >= set(RULES["quantizer"])
    assert {side.OBSERVER.TYPE for side in sides} >= set(RULES["observer"])
    assert {side.QSCHEME for side in sides} == {
        f"per-{share}-{kind}" for share in ("tensor", "channel") for kind in ("symmetric", "affine")
    }
    assert {config.BACKEND for config in configs} == {"virtual", "onnxruntime", "tensorrt"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_loads_and_reads_back(path: Path) -> None:
    config = load_qconfig(path)
    assert load_qconfig(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "side", "layer", "spec"),
    [
        ("cifar10_tensorrt", "W", "conv1", "int8 per-channel-symmetric, uniform, minmax"),
        ("cifar10_tensorrt", "A", "conv1", "int8 per-tensor-symmetric, uniform, minmax"),
        (
            "imagenet_onnxruntime_percentile",
            "W",
            "fc",
            "int8 per-channel-symmetric, uniform, percentile(alpha=0.0001)",
        ),
        (
            "imagenet_onnxruntime_percentile",
            "A",
            "fc",
            "uint8 per-tensor-affine, uniform, percentile(alpha=0.001)",
        ),
        ("cifar10_lsq_qat", "W", "layer1_0_conv1", "int4 per-channel-symmetric, lsq, minmax"),
        ("cifar10_lsq_qat", "W", "conv1", "int8 per-channel-symmetric, lsq, minmax"),
        ("cifar10_lsq_qat", "A", "fc", "uint8 per-tensor-affine, lsq, minmax"),
        ("cifar10_dorefa_qat", "W", "fc", "int4 per-tensor-symmetric, dorefa, minmax"),
        ("cifar10_pact_qat", "A", "fc", "uint4 per-tensor-affine, pact(alpha_value=6.0), minmax"),
        ("deit_lsq_plus_qat", "A", "blocks_3_mlp_fc2", "uint4 per-tensor-affine, lsq+, minmax"),
        ("deit_lsq_plus_qat", "A", "blocks_3_mlp_fc1", "int4 per-tensor-symmetric, lsq, minmax"),
        ("deit_lsq_plus_qat", "A", "blocks_3_norm1", "float"),
        ("deit_lsq_plus_qat", "A", "softmax_2", "float"),
        ("bert_cola", "A", "encoder_layer_norm", "float"),
        ("gpt2_wikitext", "W", "lm_head", "int8 per-channel-symmetric, uniform, aciq(distribution=gaus)"),
        ("gpt2_wikitext", "A", "lm_head", "int8 per-tensor-symmetric, uniform, aciq(distribution=laplace)"),
        ("gpt2_wikitext", "A", "matmul_1", "int8 per-tensor-symmetric, uniform, mse"),
        ("yolov5_kl", "A", "model_0_conv", "uint8 per-tensor-affine, uniform, kl_histogram"),
        ("imagenet_bn_tuning", "W", "conv1", "uint4 per-channel-affine, uniform, mse"),
        ("imagenet_adaround", "W", "conv1", "int8 per-channel-symmetric, uniform, minmax"),
        ("imagenet_adaround", "W", "layer1", "int4 per-channel-symmetric, adaround, minmax"),
        ("imagenet_adaround", "W", "fc", "float"),
        ("imagenet_adaround", "A", "fc", "uint8 per-tensor-affine, uniform, moving_average(ema_ratio=0.99)"),
        ("bevdet_qat", "W", "fc", "uint8 per-tensor-affine, lsq, minmax"),
        ("bevdet_qat", "A", "img_backbone_conv1", "uint8 per-channel-affine, uniform, minmax"),
    ],
)
def test_what_they_ask_for(name: str, side: Any, layer: str, spec: str) -> None:
    config = load_qconfig(Path(__file__).parent / "old" / f"{name}.yaml")
    assert str(config.spec_for(side, names=[layer], op=None)) == spec


def test_what_they_say_about_the_whole_model() -> None:
    configs = {path.stem: load_qconfig(path) for path in FILES}
    assert configs["yolov5_kl"].SKIP_TRACE_MODULES == ("model.24", "*.detect")
    assert configs["deit_lsq_plus_qat"].SKIP_TRACE_MODULES == ("blocks.*.drop_path",)
    assert configs["bevdet_qat"].A.QADD.ENABLE_QUANT
    assert configs["bevdet_qat"].DEVICE == "cuda:0"
    assert configs["imagenet_bn_tuning"].SCHEDULE.BN_TUNING
    assert not configs["imagenet_adaround"].SCHEDULE.DISABLE_UNNECESSARY_QUANT
    gpt2 = configs["gpt2_wikitext"]
    assert gpt2.spec_for("A", names=["lm_head"], op=None).layout == "NLC"
    assert gpt2.spec_for("A", names=["matmul_1"], op=None).layout == "NCHW"
