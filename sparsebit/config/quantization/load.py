"""Configs from files, presets, dicts and other configs, with overrides on top."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from sparsebit.config.engine.source import Kind, apply_overrides, check_top, read_file
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.config.quantization.check import check
from sparsebit.config.quantization.presets import preset_names, preset_text
from sparsebit.config.quantization.qconfig import QConfig
from sparsebit.errors import ConfigError

KIND = Kind(
    name="qconfig",
    least="W and A with QSCHEME and QUANTIZER.BIT",
    keys="W and A",
    override="W.QUANTIZER.BIT=4",
    presets=preset_names,
)


def load_qconfig(
    source: str | os.PathLike[str] | Mapping[str, Any] | QConfig, overrides: Sequence[str] = ()
) -> QConfig:
    """Read a config and check all of it before anything is done with it.

    Args:
        source: A YAML file, the name of a preset, a mapping, or another config. A text that names a preset means the
            preset; pass a ``Path`` for a file of that name.
        overrides: Settings that replace those of ``source``, each as ``"W.QUANTIZER.BIT=4"``. Later ones win.

    Example:
        >>> config = load_qconfig("w4a8", ["W.OBSERVER.TYPE=minmax"])
        >>> config.W.OBSERVER.TYPE, config.W.QUANTIZER.BIT
        ('minmax', 4)
        >>> load_qconfig("w4a8", ["W.QUANTIZER.BITT=4"])
        Traceback (most recent call last):
        ...
        sparsebit.config.engine.problems.ConfigProblems: override 'W.QUANTIZER.BITT=4': W.QUANTIZER.BITT: ...
    """
    if isinstance(source, QConfig) and not overrides:
        return source
    data, label = _read(source)
    origins = apply_overrides(data, overrides, KIND, _one_type)
    check(data, label, origins)
    config = QConfig(**data)
    config._source = label
    return config


def _read(source: object) -> tuple[dict[str, Any], str]:
    """Plain data, and what to call it in messages."""
    if isinstance(source, QConfig):
        return source.to_dict(), source.source
    if isinstance(source, Mapping):
        return check_top(source, KIND.name, KIND), KIND.name
    if isinstance(source, str) and source in preset_names():
        return check_top(read_yaml(preset_text(source), source), source, KIND), source
    if isinstance(source, str | os.PathLike):
        return read_file(source, KIND), str(source)
    raise ConfigError(
        f"qconfig: expected a path, the name of a preset, a mapping or a QConfig, got {type(source).__name__}"
    )


def _one_type(section: dict[str, Any], key: str, value: str) -> None:
    """BIT and DTYPE name the type of a code together: to give one replaces both."""
    if key == "BIT":
        section.pop("DTYPE", None)
    elif key == "DTYPE" and value.strip().lower() != "int":
        section.pop("BIT", None)
