"""What every kind of config is read with: a file, its top level, and overrides of single keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """What sets one kind of config apart in messages.

    Args:
        name: what a config that came from no file is called.
        least: what an empty one lacks.
        keys: some keys of its top level.
        override: an example of one.
        presets: names that may stand for a file.
    """

    name: str
    least: str
    keys: str
    override: str
    presets: Callable[[], Sequence[str]] = tuple


def read_file(source: str | bytes | os.PathLike[str], kind: Kind) -> dict[str, Any]:
    """The plain data of a YAML file; an error that says what is wrong with the file where it cannot be read."""
    label = os.fsdecode(source)
    path, presets = Path(label), kind.presets()
    try:
        text = read_text(path, MOST_BYTES)
    except FileNotFoundError:
        if presets and not path.suffix:
            raise ConfigError(f"{label}: no such preset or file; {suggest(label, presets)}") from None
        raise ConfigError(f"{label}: no such file; looked in {path.absolute().parent}") from None
    except IsADirectoryError:
        raise ConfigError(f"{label}: is a folder; name the file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{label}: not UTF-8 text (byte {error.start}); is it a YAML file?") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{show(label)}: cannot be read: {reason}") from None
    return check_top(read_yaml(text, label), label, kind)


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


def apply_overrides(
    data: dict[str, Any],
    overrides: Sequence[str],
    kind: Kind,
    before: Callable[[dict[str, Any], str, str], None] | None = None,
) -> dict[str, str]:
    """Set each override in ``data``; returns where each key came from.

    ``before`` is told the section, the key and the text of the value, and may change what else is in the section.
    """
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for text in (overrides,) if isinstance(overrides, str) else overrides:
        origin = f"override {text!r}"
        key, equals, value = text.partition("=")
        *above, last = key.strip().split(".")
        if not equals or not all([*above, last]):
            problems.append(Problem(source=origin, expected=f"KEY=VALUE such as {kind.override}"))
            continue
        section = section_at(data, above) if "SPECIFIC" not in above else None
        if section is None:
            hint = (
                "give SPECIFIC as a whole" if "SPECIFIC" in above else f"{'.'.join(above)} is not a section"
            )
            problems.append(Problem(source=origin, path=key.strip(), message="cannot be set", hint=hint))
            continue
        if before is not None:
            before(section, last, value)
        section[last] = read_yaml(value, origin)
        origins[key.strip()] = origin
    raise_problems("overrides", problems)
    return origins
