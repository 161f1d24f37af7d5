"""Brevitas: batch norm folded, then every layer with its input (layerwise); or its graph flow, which places more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "brevitas"
SETTINGS = {"W8A8": 8, "W8A8, graph flow": 8, "W4A8": 4}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    bits = SETTINGS[setting]
    # user: begin
    from brevitas.graph.calibrate import bias_correction_mode, calibration_mode
    from brevitas.graph.quantize import (
        LAYERWISE_COMPUTE_LAYER_MAP,
        layerwise_quantize,
        preprocess_for_quantize,
    )

    prepared = preprocess_for_quantize(model, equalize_iters=0)
    # user: end
    if "graph" in setting:
        from brevitas.graph.quantize import quantize as quantize_graph

        quantized = quantize_graph(prepared)
    else:
        layers = dict(LAYERWISE_COMPUTE_LAYER_MAP)
        for kind in (nn.Conv2d, nn.Linear):
            layer, settings = layers[kind]
            layers[kind] = (layer, {**settings, "weight_bit_width": bits})
        # user: begin
        quantized = layerwise_quantize(prepared, layers)
        # user: end
    # user: begin
    with torch.no_grad(), calibration_mode(quantized):
        for batch in batches:
            quantized(batch)
    with torch.no_grad(), bias_correction_mode(quantized):
        for batch in batches:
            quantized(batch)
    # user: end
    return quantized


def export(quantized: Any, example: Tensor, path: Path) -> None:
    # user: begin
    from brevitas.export import export_onnx_qcdq

    export_onnx_qcdq(
        quantized,
        args=(example,),
        export_path=str(path),
        opset_version=17,
        dynamo=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "batch"}},
    )
    # user: end
