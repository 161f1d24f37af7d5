"""Small models and what every export test does with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from sparsebit.quantization import QuantModel


class Residual(nn.Module):
    """Convolutions with a skip, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.b(torch.relu(self.a(x))) + x)
        return self.fc(self.pool(x).flatten(1))


class Tokens(nn.Module):
    """Linear layers over a sequence, normalized, with an activation between."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def config(
    w: Mapping[str, Any] | None = None, a: Mapping[str, Any] | None = None, **rest: Any
) -> dict[str, Any]:
    """A config for ONNX Runtime; ``w`` and ``a`` take bits, scheme, group_size and dtype."""

    def side(given: Mapping[str, Any] | None, scheme: str) -> dict[str, Any]:
        given = dict(given or {})
        section: dict[str, Any] = {
            "QSCHEME": given.get("scheme", scheme),
            "QUANTIZER": {"TYPE": "uniform", "BIT": given.get("bits", 8)},
            "OBSERVER": {"TYPE": "MINMAX"},
        }
        if "group_size" in given:
            section["GROUP_SIZE"] = given["group_size"]
        if "dtype" in given:
            section["QUANTIZER"]["DTYPE"] = given["dtype"]
        return section

    return {
        "BACKEND": "onnxruntime",
        "W": side(w, "per-channel-symmetric"),
        "A": side(a, "per-tensor-affine"),
        **rest,
    }


def quantized(model: nn.Module, x: Tensor, setting: Any = "int8_onnxruntime") -> QuantModel:
    """Calibrated on one batch and switched on."""
    qmodel = QuantModel(model.eval(), setting, example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


def run_file(path: Path, *inputs: Tensor) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # several would wait for each other by spinning
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return list(session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)}))


def op_types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(str(path)).graph.node]


def initializers(path: Path) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(str(path)).graph.initializer}


def close(got: Any, wanted: Tensor, limit: float = 2e-2) -> bool:
    """Within a share of the largest value: integer kernels round, and what they round moves what is behind."""
    right = wanted.detach().numpy()
    return bool(got.shape == right.shape and np.abs(got - right).max() <= limit * np.abs(right).max())
