"""ONNX Runtime's static quantizer: unsigned activations and per-channel weights, as its page advises for x86."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "onnxruntime"
SETTINGS = {
    "W8A8": ("QUInt8", "QInt8", True),
    "W8A8, its defaults": ("QInt8", "QInt8", False),
    "W4A8": ("QUInt8", "QInt4", True),
}


def prepare(model: nn.Module, example: Tensor, folder: Path) -> None:
    source = str(folder / "source.onnx")
    # user: begin
    program = torch.onnx.export(
        model, (example,), dynamo=True, input_names=["x"], dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    program.save(source)
    # user: end


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    activations, weights, per_channel = SETTINGS[setting]
    source, prepared, target = (str(folder / f"{name}.onnx") for name in ("source", "prepared", "quantized"))
    # user: begin
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quant_pre_process, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, batches):
            self.feeds = iter({"x": batch.numpy()} for batch in batches)

        def get_next(self):
            return next(self.feeds, None)

    quant_pre_process(source, prepared)
    quantize_static(
        prepared,
        target,
        Reader(batches),
        per_channel=per_channel,
        activation_type=getattr(QuantType, activations),
        weight_type=getattr(QuantType, weights),
    )
    # user: end
    return Path(target)
