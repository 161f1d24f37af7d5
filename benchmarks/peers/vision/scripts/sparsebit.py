"""This library: the preset for ONNX Runtime on a CPU; for 4-bit weights, the same with the width changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

PACKAGE = "sparsebit"
SETTINGS = {
    "W8A8": [],
    "W4A8": ["W.QUANTIZER.BIT=4"],
    "W4A8, bias corrected": ["W.QUANTIZER.BIT=4", "SCHEDULE.RECOVERY=[bias_correction]"],
}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    overrides = SETTINGS[setting]
    # user: begin
    from sparsebit import QuantModel, parse_qconfig

    config = parse_qconfig("int8_onnxruntime", overrides)
    quantized = QuantModel(model, config, example_inputs=batches[0])
    quantized.calibrate(batches)
    # user: end
    return quantized


def export(quantized: Any, example: Tensor, path: Path) -> None:
    # user: begin
    quantized.export_onnx(example, path)
    # user: end
