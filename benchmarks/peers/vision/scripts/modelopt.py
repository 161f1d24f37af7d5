"""NVIDIA ModelOpt: its default int8 config (made for TensorRT), and the same with 4-bit weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "nvidia-modelopt"
SETTINGS = {"W8A8": 8, "W4A8": 4}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    bits = SETTINGS[setting]
    # user: begin
    import modelopt.torch.quantization as mtq

    config = copy.deepcopy(mtq.INT8_DEFAULT_CFG)

    def calibrate(model):
        for batch in batches:
            model(batch)

    # user: end
    if bits != 8:
        _set_weight_bits(config, bits)
    # user: begin
    quantized = mtq.quantize(model, config, calibrate)
    # user: end
    return quantized


def _set_weight_bits(config: dict[str, Any], bits: int) -> None:
    """The config is a dictionary of patterns in some versions and a list of entries in others."""
    entries = config["quant_cfg"]
    if isinstance(entries, dict):
        entries["*weight_quantizer"]["num_bits"] = bits
        return
    for entry in entries:
        if "weight_quantizer" in str(entry.get("quantizer_name", entry)):
            entry["cfg"]["num_bits"] = bits


def export(quantized: Any, example: Tensor, path: Path) -> None:
    # user: begin
    torch.onnx.export(
        quantized,
        (example,),
        str(path),
        dynamo=False,
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
        opset_version=20,
    )
    # user: end
