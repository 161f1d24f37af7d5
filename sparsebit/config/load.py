"""Configs from files, presets, dicts and other configs, with overrides on top."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsebit.config.check import check
from sparsebit.config.nested import plain, section_at
from sparsebit.config.presets import preset_names, preset_text
from sparsebit.config.problems import Problem, raise_problems, show, suggest
from sparsebit.config.qconfig import QConfig
from sparsebit.config.yaml_file import read_yaml
from sparsebit.errors import ConfigError


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
        sparsebit.config.problems.ConfigProblems: override 'W.QUANTIZER.BITT=4': W.QUANTIZER.BITT: unknown key; ...
    """
    if isinstance(overrides, str):
        overrides = (overrides,)
    if isinstance(source, QConfig) and not overrides:
        return source
    data, label = _read(source)
    origins = _apply(data, overrides)
    check(data, label, origins)
    config = QConfig(**data)
    config._source = label
    return config


def _read(source: object) -> tuple[dict[str, Any], str]:
    """Plain data, and what to call it in messages."""
    if isinstance(source, QConfig):
        return source.to_dict(), source.source
    if isinstance(source, Mapping):
        return _top(source, "qconfig"), "qconfig"
    if isinstance(source, str) and source in preset_names():
        return _top(read_yaml(preset_text(source), source), source), source
    if isinstance(source, str | os.PathLike):
        return _read_file(os.fspath(source)), str(source)
    raise ConfigError(
        f"qconfig: expected a path, the name of a preset, a mapping or a QConfig, got {type(source).__name__}"
    )


def _read_file(name: str | bytes) -> dict[str, Any]:
    path, label = Path(os.fsdecode(name)), os.fsdecode(name)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        advice = suggest(label, preset_names()) if not path.suffix else f"looked in {path.absolute().parent}"
        kind = "no such preset or file" if not path.suffix else "no such file"
        raise ConfigError(f"{label}: {kind}; {advice}") from None
    except IsADirectoryError:
        raise ConfigError(f"{label}: is a folder; name the file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start}); is it a YAML file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{show(label)}: cannot be read: {reason}") from None
    return _top(read_yaml(text, label), label)


def _top(data: object, label: str) -> dict[str, Any]:
    try:
        data = plain(data)
    except RecursionError:
        raise ConfigError(f"{label}: a part of the config contains itself") from None
    if data is None or data == {}:
        raise ConfigError(
            f"{label}: the config is empty; it needs at least W and A with QSCHEME and QUANTIZER.BIT"
        )
    if not isinstance(data, dict):
        raise ConfigError(f"{label}: expected keys such as W and A at the top, got a {type(data).__name__}")
    if wrong := [key for key in data if not isinstance(key, str)]:
        raise ConfigError(f"{label}: expected a key in words, got {show(wrong[0])}")
    return data


def _apply(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, str]:
    """Set each override in ``data``; returns where each key came from."""
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for text in overrides:
        origin = f"override {text!r}"
        key, equals, value = text.partition("=")
        *above, last = key.strip().split(".")
        if not equals or not all([*above, last]):
            problems.append(Problem(source=origin, expected="KEY=VALUE such as W.QUANTIZER.BIT=4"))
            continue
        section = section_at(data, above) if "SPECIFIC" not in above else None
        if section is None:
            hint = (
                "give SPECIFIC as a whole" if "SPECIFIC" in above else f"{'.'.join(above)} is not a section"
            )
            problems.append(Problem(source=origin, path=key.strip(), message="cannot be set", hint=hint))
            continue
        # BIT and DTYPE name the type of a code together: to give one replaces both.
        if last == "BIT":
            section.pop("DTYPE", None)
        elif last == "DTYPE" and value.strip().lower() != "int":
            section.pop("BIT", None)
        section[last] = read_yaml(value, origin)
        origins[key.strip()] = origin
    raise_problems("overrides", problems)
    return origins
