"""A whole, valid pruning config: how it is read, and what the pruner asks of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import PrivateAttr

from sparsebit.config.match import Layer, unmatched_patterns, unmatched_rules
from sparsebit.config.nested import plain, section_at
from sparsebit.config.problems import Problem, raise_problems, show
from sparsebit.config.sconfig_check import check_sconfig
from sparsebit.config.sconfig_sections import LayerSettings, SConfigKeys
from sparsebit.config.sections import Section
from sparsebit.config.specific import write_rules
from sparsebit.config.tensor_spec import Options
from sparsebit.config.yaml_file import read_yaml
from sparsebit.errors import ConfigError


class LayerSpec(NamedTuple):
    """What is asked for one layer, after every rule was applied."""

    strategy: str
    ratio: float
    round_to: int
    nm: tuple[int, int]
    block: tuple[int, int]
    asked: bool  # whether a rule gives this layer a ratio of its own


class SConfig(SConfigKeys):
    """What the user asked for. Made by ``parse_sconfig``, or from keyword arguments that are checked the same way.

    Example:
        >>> config = SConfig(SPARSER={"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5,
        ...                           "SPECIFIC": {"layer1.*": {"RATIO": 0.25}}})
        >>> config.layer(["layer1.0.conv1"], "conv2d").ratio, config.layer(["fc"], "linear").ratio
        (0.25, 0.5)
    """

    _source: str = PrivateAttr("sconfig")

    def __init__(self, **data: Any) -> None:
        check_sconfig(data, "sconfig")
        super().__init__(**data)

    @property
    def source(self) -> str:
        """Where it was read from, for messages; plays no part in equality."""
        return self._source

    def layer(self, names: Sequence[str], op: str | None) -> LayerSpec:
        """What is asked for one layer, by every name a pattern may use for it and its canonical operator."""
        settings: dict[str, Any] = {name: getattr(self.SPARSER, name) for name in LayerSettings.model_fields}
        asked = False
        for rule in self.SPARSER.SPECIFIC:
            if rule.matches(names, op):
                settings |= dict(rule.settings)
                asked = asked or "RATIO" in dict(rule.settings)
        ratio = settings["RATIO"]
        if self.SPARSER.TYPE == "nm" and not (asked and ratio == 0):
            ratio = 1 - settings["NM"][0] / settings["NM"][1]
        return LayerSpec(
            strategy=settings["STRATEGY"],
            ratio=ratio or 0.0,
            round_to=settings["ROUND_TO"],
            nm=settings["NM"],
            block=settings["BLOCK"],
            asked=asked,
        )

    def require_matched(self, layers: Iterable[Layer], modules: Iterable[str]) -> None:
        """Raise one ``ConfigError`` that names every pattern that matches nothing, with the nearest name."""
        known = tuple(layers)
        raise_problems(
            self.source,
            [
                *unmatched_rules("SPARSER.SPECIFIC", self.SPARSER.SPECIFIC, known),
                *unmatched_patterns(
                    "IGNORE", self.IGNORE, {*modules, *(name for one in known for name in one.names)}
                ),
            ],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars that ``parse_sconfig`` turns into an equal config."""
        written: dict[str, Any] = plain(_write(self))
        return written

    def to_yaml(self) -> str:
        """The text of a file that loads as an equal config."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=110)
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SConfig) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_yaml())


def parse_sconfig(
    source: str | os.PathLike[str] | Mapping[str, Any] | SConfig, overrides: Sequence[str] = ()
) -> SConfig:
    """Read a pruning config and check all of it before anything is done with it.

    Args:
        source: A YAML file, a mapping, or another config. The old spellings ``structed`` and ``unstructed`` are read.
        overrides: Settings that replace those of ``source``, each as ``"SPARSER.RATIO=0.3"``. Later ones win.

    Example:
        >>> config = parse_sconfig({"SPARSER": {"TYPE": "structed", "STRATEGY": "l1norm", "RATIO": 0.5}})
        >>> config.SPARSER.TYPE, config.SPARSER.ROUND_TO
        ('structured', 8)
        >>> parse_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "l1nrom", "RATIO": 0.5}})
        Traceback (most recent call last):
        ...
        sparsebit.config.problems.ConfigProblems: sconfig: SPARSER.STRATEGY: expected the name of a pruning
        criterion, got 'l1nrom'; did you mean 'l1norm'?
    """
    if isinstance(overrides, str):
        overrides = (overrides,)
    if isinstance(source, SConfig) and not overrides:
        return source
    data, label = _read(source)
    origins = _apply(data, overrides)
    check_sconfig(data, label, origins)
    config = SConfig(**data)
    config._source = label
    return config


def _read(source: object) -> tuple[dict[str, Any], str]:
    """Plain data, and what to call it in messages."""
    if isinstance(source, SConfig):
        return source.to_dict(), source.source
    if isinstance(source, Mapping):
        return _top(source, "sconfig"), "sconfig"
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"sconfig: expected a path, a mapping or an SConfig, got {type(source).__name__}",
        )
    label = os.fsdecode(source)
    path = Path(label)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{label}: no such file; looked in {path.absolute().parent}") from None
    except IsADirectoryError:
        raise ConfigError(f"{label}: is a folder; name the file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start}); is it a YAML file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{show(label)}: cannot be read: {reason}") from None
    return _top(read_yaml(text, label), label), label


def _top(data: object, label: str) -> dict[str, Any]:
    try:
        data = plain(data)
    except RecursionError:
        raise ConfigError(f"{label}: a part of the config contains itself") from None
    if data is None or data == {}:
        raise ConfigError(
            f"{label}: the config is empty; it needs at least SPARSER with TYPE, STRATEGY and RATIO"
        )
    if not isinstance(data, dict):
        raise ConfigError(f"{label}: expected keys such as SPARSER at the top, got a {type(data).__name__}")
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
            problems.append(Problem(source=origin, expected="KEY=VALUE such as SPARSER.RATIO=0.3"))
            continue
        section = section_at(data, above) if "SPECIFIC" not in above else None
        if section is None:
            hint = (
                "give SPECIFIC as a whole" if "SPECIFIC" in above else f"{'.'.join(above)} is not a section"
            )
            problems.append(Problem(source=origin, path=key.strip(), message="cannot be set", hint=hint))
            continue
        section[last] = read_yaml(value, origin)
        origins[key.strip()] = origin
    raise_problems("overrides", problems)
    return origins


def _write(section: Section) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            written[name] = _write(value)
        elif isinstance(value, Options):
            if value:
                written[name] = dict(value)
        elif name == "SPECIFIC":
            written[name] = write_rules(value)
        elif value is not None:
            written[name] = value
    return written
