"""AIMET: batch norm folded, quantization simulated with the default config, then a file with Q/DQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# AIMET imports torchvision, whose published wheel needs CUDA's libraries: without them the import ends at these two
# operators. Declaring them lets the import pass; nothing here calls them.
LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

PACKAGE = "aimet-torch"
SETTINGS = {"W8A8": 8, "W4A8": 4}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    bits = SETTINGS[setting]
    # user: begin
    from aimet_torch import QuantizationSimModel
    from aimet_torch.batch_norm_fold import fold_all_batch_norms
    from aimet_torch.model_preparer import prepare_model

    prepared = prepare_model(model)
    fold_all_batch_norms(prepared, None, dummy_input=batches[0])
    quantized = QuantizationSimModel(
        prepared, batches[0], default_param_bw=bits, default_output_bw=8, config_file="htp_v81"
    )

    def calibrate(model):
        for batch in batches:
            model(batch)

    quantized.compute_encodings(calibrate)
    # user: end
    return quantized


def predictor(quantized: Any) -> Any:
    return quantized.model


def export(quantized: Any, example: Tensor, path: Path) -> None:
    # user: begin
    import aimet_torch.onnx

    aimet_torch.onnx.export(
        quantized.model,
        (example,),
        str(path),
        dynamo=True,
        input_names=["x"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        opset_version=21,
    )
    # user: end
