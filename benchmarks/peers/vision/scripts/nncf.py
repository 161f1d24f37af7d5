"""NNCF: post-training quantization of the ONNX file, its default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "nncf"
SETTINGS = {"W8A8": None}


def prepare(model: nn.Module, example: Tensor, folder: Path) -> None:
    source = str(folder / "source.onnx")
    # user: begin
    program = torch.onnx.export(
        model, (example,), dynamo=True, input_names=["x"], dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    program.save(source)
    # user: end


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    source, target = str(folder / "source.onnx"), str(folder / "quantized.onnx")
    # user: begin
    import nncf
    import onnx

    data = nncf.Dataset(batches, lambda batch: {"x": batch.numpy()})
    quantized = nncf.quantize(onnx.load(source), data, subset_size=len(batches))
    onnx.save(quantized, target)
    # user: end
    return Path(target)
