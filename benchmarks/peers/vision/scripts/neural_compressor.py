"""Intel Neural Compressor's static quantization for PyTorch: its default config, and the same with int4 weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "neural_compressor"
SETTINGS = {"W8A8": "int8", "W4A8": "int4"}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    # user: begin
    from neural_compressor.torch.export import export as capture
    from neural_compressor.torch.quantization import convert, get_default_static_config, prepare

    exported = capture(model, (batches[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    config = get_default_static_config()
    # user: end
    config.w_dtype = SETTINGS[setting]
    # user: begin
    prepared = prepare(exported, config)
    with torch.no_grad():
        for batch in batches:
            prepared(batch)
    quantized = convert(prepared)
    # user: end
    return quantized


def export(quantized: Any, example: Tensor, path: Path) -> None:
    # user: begin
    program = torch.onnx.export(
        quantized, (example,), dynamo=True, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    program.save(path)
    # user: end
