"""Configs that come with the library, by name."""

from __future__ import annotations

from importlib import resources

from sparsebit.errors import ConfigError

_FOLDER = resources.files("sparsebit.config").joinpath("presets")


def preset_names() -> tuple[str, ...]:
    """The presets there are.

    Example:
        >>> preset_names()
        ('int8_onnxruntime', 'int8_openvino', 'int8_tensorrt', 'w4a16_g128', 'w4a8')
    """
    files = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def preset_text(name: str) -> str:
    """The YAML of one preset, to read or to start a file of one's own from."""
    if name not in preset_names():
        raise ConfigError(f"{name}: no such preset", hint=f"there are: {', '.join(preset_names())}")
    return _FOLDER.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
