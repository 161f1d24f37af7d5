"""Configs for quantization, with the device they will run on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparsebit.config import QConfig, load_qconfig


def parse_qconfig(
    source: str | os.PathLike[str] | Mapping[str, Any] | QConfig, overrides: Sequence[str] = ()
) -> QConfig:
    """Read a config from a YAML file, a preset's name or a dict, check all of it, and settle its device.

    ``DEVICE: auto`` becomes ``cuda`` where there is one, else ``cpu``. ``overrides`` are settings that win over those
    of ``source``, each as ``"W.QUANTIZER.BIT=4"``.

    Example:
        >>> parse_qconfig("int8_onnxruntime", ["DEVICE=cpu"]).A.QSCHEME
        'per-tensor-affine'
    """
    config = load_qconfig(source, overrides)
    if config.DEVICE == "auto":
        source_name = config.source
        config = load_qconfig(config, [f"DEVICE={'cuda' if torch.cuda.is_available() else 'cpu'}"])
        config._source = source_name
    return config
