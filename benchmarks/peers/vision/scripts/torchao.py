"""torchao's pt2e flow with the quantizer for x86, its default config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "torchao"
SETTINGS = {"W8A8": None}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    # user: begin
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    exported = torch.export.export(
        model, (batches[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    ).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        for batch in batches:
            prepared(batch)
    quantized = convert_pt2e(prepared)
    move_exported_model_to_eval(quantized)
    # user: end
    return quantized


def export(quantized: Any, example: Tensor, path: Path) -> None:
    # user: begin
    program = torch.onnx.export(
        quantized, (example,), dynamo=True, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    program.save(path)
    # user: end
