"""torchao's pt2e flow with the quantizer for x86: its default config, and the same with a smaller range of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "torchao"
SETTINGS = {"W8A8": 8, "W4A8": 4}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    bits = SETTINGS[setting]
    # user: begin
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    exported = torch.export.export(
        model, (batches[0],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    ).module()
    quantizer = x86.X86InductorQuantizer()
    config = x86.get_default_x86_inductor_quantization_config()
    # user: end
    if bits != 8:
        weight = replace(config.weight, quant_min=-(2 ** (bits - 1)), quant_max=2 ** (bits - 1) - 1)
        config = replace(config, weight=weight)
    # user: begin
    quantizer.set_global(config)
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
