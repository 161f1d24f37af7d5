"""The base of all configs: read from a file, a preset or plain data, checked once, immutable, written back."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sparsebit.config.engine.nested import plain, section_at
from sparsebit.config.engine.problems import Problem, raise_problems, show, suggest
from sparsebit.config.engine.section import Findings, Section, build_fields, key, read_keys, write_section
from sparsebit.config.engine.values import DEVICE
from sparsebit.config.engine.yaml_file import read_yaml, write_yaml
from sparsebit.errors import ConfigError, with_article
from sparsebit.storage.text_file import read_text

MOST_BYTES = 2**21

C = TypeVar("C", bound="Config")
Source = str | os.PathLike[str] | Mapping[str, Any]


class Config(Section, init=False):
    """A valid config. Subclasses, with ``init=False``, add their keys, the facts below and ``conflicts``.

    It cannot be changed; ``load_config(type, config, ["KEY=VALUE"])`` makes another one.
    """

    NAME: ClassVar[str]  # of a config that was not read from a file
    TITLE: ClassVar[str]  # of its JSON schema
    PAGE: ClassVar[str]  # the how-to page that explains it
    LEAST: ClassVar[str]  # the least that a config must contain
    EXAMPLE: ClassVar[str]  # of an override
    PRESETS: ClassVar[str] = ""  # the folder of its presets in this package
    SYNONYMS: ClassVar[Mapping[str, str]] = {}  # other words for a part of a preset's name

    DEVICE: str = key(DEVICE, "The device to use; auto selects a GPU if there is one.", default="auto")

    def __init__(self, **data: Any) -> None:
        self._fill(data, self.NAME, {})

    def _fill(self, data: Mapping[str, Any], source: str, origins: Mapping[str, str]) -> None:
        """Read all keys and check their combinations; raise one ``ConfigError`` with all mistakes.

        ``origins`` maps the paths of keys that do not come from ``source`` to a description of their origin.
        """
        found = Findings()
        for name, value in build_fields(type(self), read_keys(type(self), data, "", found)).items():
            object.__setattr__(self, name, value)
        found.problems += [problem for problem in self.conflicts() if not found.depends(problem)]
        raise_problems(source, found.placed(origins))
        object.__setattr__(self, "_source", source)

    @classmethod
    def read(cls: type[C], data: Mapping[str, Any], source: str, origins: Mapping[str, str]) -> C:
        """The config that plain data describes; ``source`` is what messages call it."""
        made = cls.__new__(cls)
        made._fill(data, source, origins)
        return made

    def conflicts(self) -> Iterable[Problem]:
        """All settings that cannot be used together."""
        return ()

    @classmethod
    def preset_names(cls) -> tuple[str, ...]:
        """Names that may be given instead of a file."""
        return tuple(sorted(shipped_presets(cls.PRESETS))) if cls.PRESETS else ()

    @classmethod
    def preset_text(cls, name: str) -> str:
        """The YAML of one preset."""
        return shipped_presets(cls.PRESETS)[name].read_text(encoding="utf-8")

    @staticmethod
    def before_override(section: dict[str, Any], name: str, value: str) -> None:
        """Called with a section, the key in it that is overridden, and the text of the value."""

    @property
    def source(self) -> str:
        """Where it was read from, for messages; plays no part in equality."""
        found: str = self.__dict__["_source"]
        return found

    def settle_device(self: C, count_gpus: Callable[[], int]) -> C:
        """The same config with a device of this machine: ``auto`` is the first GPU if there is one, else the CPU."""
        device, index = self.DEVICE, self.DEVICE.partition(":")[2]
        if device == "auto":
            device = "cuda" if count_gpus() else "cpu"
        elif device.startswith("cuda") and int(index or 0) >= (gpus := count_gpus()):
            has = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "no GPU that torch can use"
            expected = "auto, cpu or a GPU of this machine"
            hint = f"it has {has}: set DEVICE: auto, which uses a GPU if there is one, or DEVICE: cpu"
            raise_problems(
                self.source, [Problem(path="DEVICE", expected=expected, got=repr(device), hint=hint)]
            )
        moved = copy.copy(self)
        object.__setattr__(moved, "DEVICE", device)
        return moved

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars that load as an equal config."""
        return write_section(self)

    def to_yaml(self) -> str:
        """The text of a file that loads as an equal config."""
        return write_yaml(self.to_dict())


def shipped_presets(folder: str) -> dict[str, Traversable]:
    """The files of a folder of presets, by name."""
    files = resources.files("sparsebit.config").joinpath(folder).iterdir()
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def load_config(kind: type[C], source: Source | C, overrides: Sequence[str] = ()) -> C:
    """Read a config of this kind from a file, a preset's name, a mapping or another config, and check it completely."""
    if isinstance(source, kind) and not overrides:
        return source
    data, label = _read(kind, source)
    origins = apply_overrides(kind, data, overrides)
    return kind.read(data, label, origins)


def _read(kind: type[Config], source: object) -> tuple[dict[str, Any], str]:
    """Plain data, and its name in messages."""
    if isinstance(source, kind):
        return source.to_dict(), source.source
    if isinstance(source, Mapping):
        return check_top(kind, source, kind.NAME), kind.NAME
    if isinstance(source, str) and source in kind.preset_names():
        return check_top(kind, read_yaml(kind.preset_text(source), source), source), source
    if isinstance(source, str | os.PathLike):
        return read_file(kind, source), os.fsdecode(source)
    preset = "the name of a preset, " if kind.preset_names() else ""
    raise ConfigError(
        f"{kind.NAME}: expected a path, {preset}a mapping or a config, got {type(source).__name__}"
    )


def read_file(kind: type[Config], source: str | os.PathLike[str]) -> dict[str, Any]:
    """The plain data of a YAML file; if it cannot be read, the error says why."""
    label = os.fsdecode(source)
    path, named = Path(label), label if len(label) <= 4096 else show(label)
    try:
        text = read_text(path, MOST_BYTES)
    except FileNotFoundError:
        if kind.preset_names() and not path.suffix:
            words = [kind.SYNONYMS.get(word, word) for word in label.lower().replace("-", "_").split("_")]
            hint = suggest("_".join(words), list(kind.preset_names()))
            raise ConfigError(f"{named}: no such preset or file; {hint}") from None
        presets = (
            ""
            if kind.preset_names() or path.suffix
            else f"; a {kind.TITLE.removeprefix('Sparsebit ')} has no presets"
        )
        raise ConfigError(f"{named}: no such file; looked in {path.absolute().parent}{presets}") from None
    except IsADirectoryError:
        raise ConfigError(f"{label}: is a folder; name the file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start}); is it a YAML file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{show(label)}: cannot be read: {reason}") from None
    return check_top(kind, read_yaml(text, label), label)


def check_top(kind: type[Config], data: object, label: str) -> dict[str, Any]:
    """A plain copy of a config's data, whose keys must be strings."""
    try:
        data = plain(data)
    except RecursionError:
        raise ConfigError(f"{label}: a part of the config contains itself") from None
    if data is None or data == {}:
        raise ConfigError(f"{label}: the config is empty; it needs at least {kind.LEAST}")
    if not isinstance(data, dict):
        got = with_article(type(data).__name__)
        raise ConfigError(f"{label}: expected keys with values (at least {kind.LEAST}), got {got}")
    if wrong := [key for key in data if not isinstance(key, str)]:
        raise ConfigError(f"{label}: expected a string as key, got {show(wrong[0])}")
    return data


def apply_overrides(kind: type[Config], data: dict[str, Any], overrides: Sequence[str]) -> dict[str, str]:
    """Set each override in ``data``; returns the origin of each key."""
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for text in (overrides,) if isinstance(overrides, str) else overrides:
        origin = f"override {show(text)}"
        key, equals, value = text.partition("=")
        *above, last = key.strip().split(".")
        if not equals or not all([*above, last]):
            problems.append(Problem(source=origin, expected=f"KEY=VALUE such as {kind.EXAMPLE}"))
            continue
        section = section_at(data, above) if "SPECIFIC" not in above else None
        if section is None:
            hint = f"{'.'.join(above)} is not a section"
            if "SPECIFIC" in above:
                hint = "set SPECIFIC itself, with all its rules"
            problems.append(Problem(source=origin, path=key.strip(), message="cannot be set", hint=hint))
            continue
        kind.before_override(section, last, value)
        section[last] = read_yaml(value, origin)
        origins[key.strip()] = origin
    raise_problems("overrides", problems)
    return origins
