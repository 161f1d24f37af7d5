"""Sections: the keys of a config, declared once as dataclass fields, and the reader for all of them.

A field says how its value is read, what it means and what it is when it is left out. Reading finds everything that is
wrong in one pass; the same declaration writes the config back and gives the JSON schema for editors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, dataclass_transform

from sparsebit.config.engine.problems import MOST_SHOWN, Problem, nearest, shorten, show, suggest
from sparsebit.config.engine.values import Read, Refused

S = TypeVar("S", bound="Section")


@dataclass(frozen=True)
class Key:
    """The declaration of one key."""

    doc: str
    read: Read | None = None  # how its value is read; None for a section
    section: type[Section] | None = None  # the section it holds
    required: bool = False
    read_all: Callable[[object, str, Findings], object] | None = None  # if a value may have several problems


def key(read: Read, doc: str, *, default: Any = MISSING, required_as: Any = MISSING) -> Any:
    """A field for one value. ``required_as`` makes it required, and is the stand-in if it is missing or wrong."""
    required = required_as is not MISSING
    return field(
        default=required_as if required else default, metadata={"key": Key(doc, read, required=required)}
    )


def section(kind: type[Section], doc: str) -> Any:
    """A field that holds a section. If omitted, it is read as an empty one."""
    return field(default_factory=kind, metadata={"key": Key(doc, section=kind)})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key, section))
class Section:
    """A group of keys. Every subclass becomes a frozen keyword-only dataclass of ``key`` and ``section`` fields."""

    elsewhere: ClassVar[Mapping[str, str]] = {}  # keys that belong elsewhere, with their correct place
    needs_one_of: ClassVar[tuple[str, ...]] = ()  # keys of which one must be given, for the schema

    def __init_subclass__(cls, *, init: bool = True) -> None:
        dataclass(frozen=True, kw_only=True, init=init)(cls)

    @classmethod
    def prepare(cls, data: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """The data in the form that the keys expect. Raises ``Refused`` if keys contradict each other."""
        return data


def keys_of(kind: type[Section]) -> dict[str, Key]:
    """The keys of a section by name."""
    found: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    return {one.name: one.metadata["key"] for one in found}


class Findings:
    """The mistakes found while reading, and which keys hold a stand-in because of them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.wrong: set[str] = set()

    def add(self, path: str, error: Refused, value: object) -> None:
        """Record a refused value."""
        self.problems.append(Problem(path=path, expected=error.expected, got=show(value), hint=error.hint))
        self.wrong.add(path)

    def depends(self, problem: Problem) -> bool:
        """Whether a problem may be caused only by a stand-in."""
        keys = problem.keys or {problem.path}
        return any(one == path or one.startswith(f"{path}.") for path in self.wrong for one in keys)

    def placed(self, origins: Mapping[str, str]) -> Iterator[Problem]:
        """The problems, each with the source of its key if that is not the config itself."""
        for problem in self.problems:
            for name, origin in origins.items():
                if problem.path == name or problem.path.startswith((f"{name}.", f"{name}[")):
                    problem = replace(problem, source=origin)
                    break
            yield problem


def join(path: str, part: str) -> str:
    """``W`` and ``BIT`` to ``W.BIT``."""
    return f"{path}.{part}" if path else part


def read_keys(
    kind: type[Section], data: object, path: str, found: Findings, *, complete: bool = True
) -> dict[str, Any]:
    """The values that ``data`` gives to the keys of a section, section by section.

    If not ``complete``, the data is a rule for some layers, in which no key is required.
    """
    if data is None or isinstance(data, Section):
        data = {} if data is None else write_section(data)
    if not isinstance(data, Mapping):
        found.add(path, Refused("keys with values"), data)
        return {}
    try:
        data = kind.prepare(data)
    except Refused as error:
        found.add(path, error, data)
        data = {name: value for name, value in data.items() if name not in kind.needs_one_of}
    keys, values = keys_of(kind), dict[str, Any]()
    given = {name: value for name, value in data.items() if value is not None}
    unknown = [name for name in data if name not in keys]
    meant = {nearest(name, keys) for name in unknown[:MOST_SHOWN] if isinstance(name, str)}
    for name, declared in keys.items():
        place = join(path, name)
        if name in meant:
            found.wrong.add(place)
        if declared.section is not None:
            if name in given or complete:
                values[name] = read_keys(declared.section, given.get(name), place, found, complete=complete)
            continue
        assert declared.read is not None
        if name in given and declared.read_all is not None:
            values[name] = declared.read_all(given[name], place, found)
        elif name in given:
            try:
                values[name] = declared.read.parse(given[name])
            except Refused as error:
                found.add(place, error, given[name])
        elif declared.required and complete:
            if name not in meant and path not in found.wrong:
                found.problems.append(
                    Problem(path=place, message="required", expected=declared.read.expected)
                )
            found.wrong.add(place)
    for name in unknown:
        found.problems.append(_unknown_key(kind, name, path, hinted=len(found.problems) < MOST_SHOWN))
    return values


def _unknown_key(kind: type[Section], name: object, path: str, *, hinted: bool) -> Problem:
    if not isinstance(name, str):
        return Problem(path=join(path, show(name)), expected="a string as key", got=show(name))
    hint = (kind.elsewhere.get(name) or suggest(name, list(keys_of(kind)))) if hinted else ""
    return Problem(path=join(path, shorten(name)), message="unknown key", hint=hint)


def build(kind: type[S], values: Mapping[str, Any]) -> S:
    """The section with these values, and with defaults or stand-ins for the rest."""
    return kind(**build_fields(kind, values))


def build_fields(kind: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every field of a section."""
    made: dict[str, Any] = {}
    for name, declared in keys_of(kind).items():
        if declared.section is not None:
            made[name] = build(declared.section, values.get(name, {}))
        else:
            made[name] = values.get(name, getattr(kind, name))
    return made


def flatten(values: Section | Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Dotted keys to values, of a section or of what ``read_keys`` gave; options are keys too.

    Example:
        >>> from sparsebit.config.engine.options import Options
        >>> flatten({"QSCHEME": "x", "QUANTIZER": {"BIT": 4, "OPTIONS": Options(steps=9)}})
        {'QSCHEME': 'x', 'QUANTIZER.BIT': 4, 'QUANTIZER.OPTIONS.steps': 9}
    """
    if isinstance(values, Section):
        values = {name: getattr(values, name) for name in keys_of(type(values))}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if names is not None and name not in names:
            continue
        if isinstance(value, Section | Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def write_section(values: Section) -> dict[str, Any]:
    """Plain dicts, lists and scalars that are read as an equal section; unset keys are omitted."""
    written: dict[str, Any] = {}
    for name, declared in keys_of(type(values)).items():
        value = getattr(values, name)
        if declared.section is not None:
            written[name] = write_section(value)
        elif value is not None and declared.read is not None:
            plain_value = declared.read.write(value)
            if plain_value is not None:
                written[name] = plain_value
    return written
