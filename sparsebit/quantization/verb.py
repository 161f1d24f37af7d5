"""``sparsebit.quantize``: from a model and data to a quantized model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from sparsebit.batches import Feed, example_from, peek
from sparsebit.config import QConfig
from sparsebit.processes import failing_together
from sparsebit.quantization.build import require_float_model
from sparsebit.quantization.quant_model import QuantModel


def quantize(
    model: nn.Module,
    data: Any,
    config: QConfig | str | os.PathLike[str] | Mapping[str, Any] = "int8_onnxruntime",
    *,
    batches: int | None = None,
    feed: Feed | None = None,
    example_inputs: Any = None,
    progress: bool | None = None,
) -> QuantModel:
    """A quantized model: captured, planned and calibrated.

    Args:
        model: any ``nn.Module``; it is not changed.
        data: batches, a ``DataLoader``, or one tensor; see ``sparsebit.batches``.
        config: a preset's name, a path to a YAML file, a dict, or the result of ``parse_qconfig``.
        batches: how many batches to calibrate with; all by default.
        feed: a function from a batch to its arguments, instead of the rule for batches.
        example_inputs: the call to capture the model with; by default a few samples of the first batch.
        progress: whether to show progress; by default only on a terminal.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        >>> qmodel = quantize(net, torch.randn(16, 4), progress=False)
        >>> all(quantizer.is_enable for quantizer in qmodel.quantizers.values())
        True
    """
    model = require_float_model(model)
    if example_inputs is None:
        with failing_together():  # a process without data has no example either
            first, data = peek(data)
        example_inputs = example_from(model, first, feed)
    qmodel = QuantModel(model, config, example_inputs)
    qmodel.calibrate(data, batches, feed=feed, progress=progress)
    return qmodel
