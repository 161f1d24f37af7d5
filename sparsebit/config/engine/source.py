"""Where a config comes from: a file, plain data, and overrides of single keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsebit.config.engine.nested import plain, section_at
from sparsebit.config.engine.problems import Problem, raise_problems, show, suggest
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.errors import ConfigError
from sparsebit.storage.text_file import read_text

MOST_BYTES = 2**21


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is special about one kind of config.

    Args:
        name: what a config that came from no file is called.
        title: of its JSON schema; ``page`` is the how-to page that explains it.
        least: what an empty one lacks.
        keys: some keys of its top level.
        override: an example of one.
        presets: names that may stand for a file; ``preset_text`` gives the YAML of one.
        synonyms: other words for a part of such a name, for the advice about an unknown one.
        before_override: called with a section, the key that is overridden and the text of the value.
    """

    name: str
    title: str
    page: str
    least: str
    keys: str
    override: str
    presets: Callable[[], Sequence[str]] = tuple
    preset_text: Callable[[str], str] = str
    synonyms: Mapping[str, str] = field(default_factory=dict)
    before_override: Callable[[dict[str, Any], str, str], None] | None = None


def read_file(source: str | os.PathLike[str], kind: Kind) -> dict[str, Any]:
    """The plain data of a YAML file; an error that says what is wrong with the file where it cannot be read."""
    label = os.fsdecode(source)
    path = Path(label)
    try:
        text = read_text(path, MOST_BYTES)
    except FileNotFoundError:
        if kind.presets() and not path.suffix:
            raise ConfigError(
                f"{show_name(label)}: no such preset or file; {_preset_hint(label, kind)}"
            ) from None
        raise ConfigError(f"{show_name(label)}: no such file; looked in {path.absolute().parent}") from None
    except IsADirectoryError:
        raise ConfigError(f"{label}: is a folder; name the file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start}); is it a YAML file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{show(label)}: cannot be read: {reason}") from None
    return check_top(read_yaml(text, label), label, kind)


def show_name(label: str) -> str:
    """The name of a file in a message: as it is, unless it is longer than any name."""
    return label if len(label) <= 4096 else show(label)


def _preset_hint(label: str, kind: Kind) -> str:
    words = [kind.synonyms.get(word, word) for word in label.lower().replace("-", "_").split("_")]
    return suggest("_".join(words), list(kind.presets()))


def check_top(data: object, label: str, kind: Kind) -> dict[str, Any]:
    """A plain copy of a config's data, which must be keys in words."""
    try:
        data = plain(data)
    except RecursionError:
        raise ConfigError(f"{label}: a part of the config contains itself") from None
    if data is None or data == {}:
        raise ConfigError(f"{label}: the config is empty; it needs at least {kind.least}")
    if not isinstance(data, dict):
        raise ConfigError(
            f"{label}: expected keys such as {kind.keys} at the top, got a {type(data).__name__}"
        )
    if wrong := [key for key in data if not isinstance(key, str)]:
        raise ConfigError(f"{label}: expected a key in words, got {show(wrong[0])}")
    return data


def apply_overrides(data: dict[str, Any], overrides: Sequence[str], kind: Kind) -> dict[str, str]:
    """Set each override in ``data``; returns where each key came from."""
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for text in (overrides,) if isinstance(overrides, str) else overrides:
        origin = f"override {show(text)}"
        key, equals, value = text.partition("=")
        *above, last = key.strip().split(".")
        if not equals or not all([*above, last]):
            problems.append(Problem(source=origin, expected=f"KEY=VALUE such as {kind.override}"))
            continue
        section = section_at(data, above) if "SPECIFIC" not in above else None
        if section is None:
            hint = f"{'.'.join(above)} is not a section"
            if "SPECIFIC" in above:
                hint = "set SPECIFIC itself, with all its rules"
            problems.append(Problem(source=origin, path=key.strip(), message="cannot be set", hint=hint))
            continue
        if kind.before_override is not None:
            kind.before_override(section, last, value)
        section[last] = read_yaml(value, origin)
        origins[key.strip()] = origin
    raise_problems("overrides", problems)
    return origins
