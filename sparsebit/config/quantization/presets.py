"""Configs that come with the library, by name."""

from __future__ import annotations

import re

from sparsebit.config.engine.config import shipped_presets
from sparsebit.errors import ConfigError
from sparsebit.targets import TARGETS, Target

FOLDER = "quantization/presets"


def preset_names() -> tuple[str, ...]:
    """The names of all presets.

    Example:
        >>> preset_names()
        ('int8_onnxruntime', 'int8_openvino', 'int8_tensorrt', 'w4a16_g128', 'w4a8')
    """
    return tuple(sorted({*shipped_presets(FOLDER), *_of_targets()}))


def _of_targets() -> dict[str, Target]:
    """A preset for every target that declares what it accepts: the preset it is based on, with its BACKEND."""
    return {f"int8_{name}": target for name, target in TARGETS.items() if target.accepts}


def preset_text(name: str) -> str:
    """The YAML of one preset, to read or to start your own file from."""
    if name not in preset_names():
        raise ConfigError(f"{name}: no such preset", hint=f"there are: {', '.join(preset_names())}")
    if found := shipped_presets(FOLDER).get(name):
        return found.read_text(encoding="utf-8")
    target = _of_targets()[name]
    return re.sub(r"(?m)^BACKEND:.*$", f"BACKEND: {target.name}", preset_text(target.preset))
