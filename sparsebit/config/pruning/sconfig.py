"""A whole, valid pruning config: how it is read, and what the pruner asks of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import PrivateAttr

from sparsebit.config.engine.match import Layer, unmatched_patterns, unmatched_rules
from sparsebit.config.engine.problems import raise_problems
from sparsebit.config.engine.source import Kind, apply_overrides, check_top, read_file
from sparsebit.config.engine.write import write_section
from sparsebit.config.engine.yaml_file import write_yaml
from sparsebit.config.pruning.check import check_sconfig
from sparsebit.config.pruning.sections import LayerSettings, SConfigKeys
from sparsebit.errors import ConfigError

KIND = Kind(
    name="sconfig",
    least="SPARSER with TYPE, STRATEGY and RATIO",
    keys="SPARSER",
    override="SPARSER.RATIO=0.3",
)


class LayerSpec(NamedTuple):
    """What is asked for one layer, after every rule was applied."""

    strategy: str
    ratio: float
    round_to: int
    nm: tuple[int, int]
    block: tuple[int, int]
    asked: bool  # whether a rule gives this layer a ratio of its own


class SConfig(SConfigKeys):
    """What the user asked for. Made by ``load_sconfig``, or from keyword arguments that are checked the same way.

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
        """Plain dicts, lists and scalars that ``load_sconfig`` turns into an equal config."""
        return write_section(self)

    def to_yaml(self) -> str:
        """The text of a file that loads as an equal config."""
        return write_yaml(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SConfig) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.to_yaml())


def load_sconfig(
    source: str | os.PathLike[str] | Mapping[str, Any] | SConfig, overrides: Sequence[str] = ()
) -> SConfig:
    """Read a pruning config and check all of it before anything is done with it.

    Args:
        source: A YAML file, a mapping, or another config. The old spellings ``structed`` and ``unstructed`` are read.
        overrides: Settings that replace those of ``source``, each as ``"SPARSER.RATIO=0.3"``. Later ones win.

    Example:
        >>> config = load_sconfig({"SPARSER": {"TYPE": "structed", "STRATEGY": "l1norm", "RATIO": 0.5}})
        >>> config.SPARSER.TYPE, config.SPARSER.ROUND_TO
        ('structured', 8)
        >>> load_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "l1nrom", "RATIO": 0.5}})
        Traceback (most recent call last):
        ...
        sparsebit.config.engine.problems.ConfigProblems: sconfig: SPARSER.STRATEGY: expected the name of a pruning
        criterion, got 'l1nrom'; did you mean 'l1norm'?
    """
    if isinstance(source, SConfig) and not overrides:
        return source
    data, label = _read(source)
    origins = apply_overrides(data, overrides, KIND)
    check_sconfig(data, label, origins)
    config = SConfig(**data)
    config._source = label
    return config


def _read(source: object) -> tuple[dict[str, Any], str]:
    """Plain data, and what to call it in messages."""
    if isinstance(source, SConfig):
        return source.to_dict(), source.source
    if isinstance(source, Mapping):
        return check_top(source, KIND.name, KIND), KIND.name
    if isinstance(source, str | os.PathLike):
        return read_file(source, KIND), os.fsdecode(source)
    raise ConfigError(f"sconfig: expected a path, a mapping or an SConfig, got {type(source).__name__}")
