"""Configs for pruning, with the device they will run on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparsebit.config import SConfig, load_sconfig


def parse_sconfig(
    source: str | os.PathLike[str] | Mapping[str, Any] | SConfig, overrides: Sequence[str] = ()
) -> SConfig:
    """Read a pruning config from a YAML file or a dict, check all of it, and settle its device.

    ``DEVICE: auto`` becomes ``cuda`` where there is one, else ``cpu``. ``overrides`` are settings that win over those
    of ``source``, each as ``"SPARSER.RATIO=0.3"``.

    Example:
        >>> config = parse_sconfig({"SPARSER": {"TYPE": "structed", "STRATEGY": "l1norm", "RATIO": 0.5}})
        >>> config.SPARSER.TYPE, config.DEVICE == "auto"
        ('structured', False)
    """
    config = load_sconfig(source, overrides)
    if config.DEVICE == "auto":
        source_name = config.source
        config = load_sconfig(config, [f"DEVICE={'cuda' if torch.cuda.is_available() else 'cpu'}"])
        config._source = source_name
    return config
