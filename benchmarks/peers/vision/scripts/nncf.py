"""NNCF: post-training quantization of the ONNX file, its default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "nncf"
SETTINGS = {"W8A8": 8, "W4A8": 4}


def prepare(model: nn.Module, example: Tensor, folder: Path) -> None:
    source = str(folder / "source.onnx")
    # user: begin
    program = torch.onnx.export(
        model, (example,), dynamo=True, input_names=["x"], dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    program.save(source)
    # user: end


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    bits = SETTINGS[setting]
    source, target = str(folder / "source.onnx"), str(folder / "quantized.onnx")
    # user: begin
    import nncf
    import onnx

    data = nncf.Dataset(batches, lambda batch: {"x": batch.numpy()})
    # user: end
    more = {}
    if bits != 8:
        widths = nncf.quantization.advanced_parameters.QuantizationParameters(num_bits=bits)
        more["advanced_parameters"] = nncf.AdvancedQuantizationParameters(weights_quantization_params=widths)
    # user: begin
    quantized = nncf.quantize(onnx.load(source), data, subset_size=len(batches), **more)
    onnx.save(quantized, target)
    # user: end
    return Path(target)
