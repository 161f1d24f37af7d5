"""The short verb ``sparsebit.export_onnx``: model, path, example."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from sparsebit.export import onnx_export
from sparsebit.export.onnx_export import OnnxExport


def export_onnx(model: nn.Module, path: str | os.PathLike[str], example: Any, **options: Any) -> OnnxExport:
    """Write any model as an ONNX file, run the file, and compare it with the model.

    Args:
        model: a quantized or pruned model, a captured graph, or a plain module, which is captured first.
        path: the file to write; ``.onnx`` is appended if it has no suffix. If this fails, no file is left.
        example: example input: a tensor, a tuple of positional or a dict of keyword arguments. A batch of the
            calibration data will do: labels are ignored if the model was captured without them.
        options: the other arguments of ``sparsebit.export.export_onnx``, by name: ``check``, ``dynamic_axes``, ...
    """
    path = onnx_export.as_path(path, "sparsebit.export_onnx(model, 'model.onnx', example)")
    return onnx_export.export_onnx(model, example, path, **options)
