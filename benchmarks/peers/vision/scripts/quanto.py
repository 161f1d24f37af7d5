"""optimum-quanto: int8 weights and activations; it has no ONNX export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE = "optimum-quanto"
SETTINGS = {"W8A8": "qint8", "W4A8": "qint4"}


def quantize(model: nn.Module, batches: list[Tensor], folder: Path, setting: str) -> Any:
    weights = SETTINGS[setting]
    # user: begin
    import optimum.quanto

    optimum.quanto.quantize(model, weights=getattr(optimum.quanto, weights), activations=optimum.quanto.qint8)
    with torch.no_grad(), optimum.quanto.Calibration():
        for batch in batches:
            model(batch)
    optimum.quanto.freeze(model)
    # user: end
    return model
