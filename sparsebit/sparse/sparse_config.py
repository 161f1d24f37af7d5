"""Configs for pruning, with the device they will run on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsebit.config import SConfig, load_sconfig
from sparsebit.config.engine.config import Source


def parse_sconfig(source: Source | SConfig, overrides: Sequence[str] = ()) -> SConfig:
    """Read a pruning config from a YAML file or a dict, check it, and choose its device.

    ``DEVICE: auto`` becomes ``cuda`` if there is a GPU, else ``cpu``. ``overrides`` are settings that replace those
    of ``source``, each as ``"SPARSER.RATIO=0.3"``.

    Example:
        >>> config = parse_sconfig({"SPARSER": {"TYPE": "structed", "STRATEGY": "l1norm", "RATIO": 0.5}})
        >>> config.SPARSER.TYPE, config.DEVICE == "auto"
        ('structured', False)
    """
    return load_sconfig(source, overrides).settle_device(torch.cuda.device_count)
