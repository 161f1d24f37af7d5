"""A config with different bits for some layers, as SPECIFIC rules after all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsebit.config import QConfig, load_qconfig

FLOAT = 32  # bits of a number that is not quantized


def with_layer_bits(
    config: QConfig, weights: Mapping[str, int] | None = None, inputs: Mapping[str, int] | None = None
) -> QConfig:
    """``config`` with other widths for the weight and the input of some layers; ``FLOAT`` leaves them in float.

    Example:
        >>> changed = with_layer_bits(load_qconfig("w4a8"), weights={"layer1.0.conv1": 2}, inputs={"fc": FLOAT})
        >>> changed.to_dict()["W"]["SPECIFIC"], changed.to_dict()["A"]["SPECIFIC"]
        ([{'layer1.0.conv1': ['QUANTIZER.BIT', 2]}], [{'fc': ['QUANTIZER.BIT', 0]}])
    """
    data: dict[str, Any] = config.to_dict()
    for side, bits in (("W", weights), ("A", inputs)):
        rules = {
            name: ["QUANTIZER.BIT", 0 if width == FLOAT else width] for name, width in (bits or {}).items()
        }
        if rules:
            data[side]["SPECIFIC"] = [*data[side]["SPECIFIC"], rules]
    return load_qconfig(data)
