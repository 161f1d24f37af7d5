"""Small constants of the old toolkit that scripts compare with."""

from __future__ import annotations

import enum

import torch
from torch.torch_version import TorchVersion

from sparsebit.targets import TARGETS


class QuantTarget(enum.Enum):
    """Which side of an operator a quantizer is on; today ``Quantizer.side`` is "W" or "A"."""

    WEIGHT = "W"
    FEATURE = "A"


class Backend(enum.StrEnum):
    """The runtimes the old toolkit knew, equal to the names that configs use."""

    VIRTUAL = "virtual"
    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


def get_backend(name: str) -> Backend:
    """The runtime of that name.

    Example:
        >>> get_backend("tensorrt") == "tensorrt"
        True
    """
    return Backend(TARGETS[name].name)


def check_torch_version(target: str) -> bool:
    """Whether torch is at least this version.

    Example:
        >>> check_torch_version("1.9.0")
        True
    """
    return TorchVersion(torch.__version__) >= target
