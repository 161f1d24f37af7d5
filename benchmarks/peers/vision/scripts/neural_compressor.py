"""Intel Neural Compressor's static quantization for PyTorch, its default config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "neural_compressor"
SETTINGS = {"W8A8": None}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    # user: begin
    from neural_compressor.torch.export import export as capture
    from neural_compressor.torch.quantization import convert, get_default_static_config, prepare

    exported = capture(model, (batches[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    prepared = prepare(exported, get_default_static_config())
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
