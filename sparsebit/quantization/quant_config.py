"""Configs for quantization, with the device they will run on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsebit.config import QConfig, load_qconfig
from sparsebit.config.engine.config import Source


def parse_qconfig(source: Source | QConfig, overrides: Sequence[str] = ()) -> QConfig:
    """Read a config from a YAML file, a preset's name or a dict, check it, and choose its device.

    ``DEVICE: auto`` becomes ``cuda`` if there is a GPU, else ``cpu``. ``overrides`` are settings that replace those
    of ``source``, each as ``"W.QUANTIZER.BIT=4"``.

    Example:
        >>> parse_qconfig("int8_onnxruntime", ["DEVICE=cpu"]).A.QSCHEME
        'per-tensor-affine'
    """
    return load_qconfig(source, overrides).settle_device(torch.cuda.device_count)
