"""How single values are read: what is accepted, how it is converted, and the message if it is refused.

The first Sparsebit read every value with ``ast.literal_eval``, so ``"8"``, ``1e-3`` (text, to a YAML 1.1 parser) and
``8.0`` all have to be numbers here.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparsebit.config.engine.nested import plain
from sparsebit.config.engine.options import Options, Scalar
from sparsebit.config.engine.problems import nearest, show, suggest_space


class Refused(Exception):
    """A value that cannot be read. The reader of the config adds the place and the value."""

    def __init__(self, expected: str, hint: str = "") -> None:
        super().__init__(expected)
        self.expected, self.hint = expected, hint


@dataclass(frozen=True, eq=False)
class Read:
    """How one value is read, its description in words, its JSON schema, and how it is written back."""

    parse: Callable[[object], object]  # raises Refused
    expected: str
    schema: Mapping[str, object]
    write: Callable[[object], object] = plain  # values written as None are omitted


def parse_number(value: object) -> float | None:
    """The number that a value represents; None if it is not a number. True does not count as 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def parse_whole(value: object) -> int | None:
    """The integer that a value represents, also as 8.0 or "8"; None if it is not one."""
    found = parse_number(value)
    return int(found) if found is not None and found == int(found) else None


def number(expected: str, inside: Callable[[float], bool], **limits: float) -> Read:
    """A real number for which ``inside`` holds; ``limits`` express the same condition in JSON schema."""

    def parse(value: object) -> float:
        found = parse_number(value)
        if found is None or not inside(found):
            raise Refused(expected)
        return found

    return Read(parse, expected, {"type": "number", **limits})


def whole(lowest: int) -> Read:
    """An integer of at least ``lowest``."""
    expected = f"an integer of at least {lowest}"

    def parse(value: object) -> int:
        found = parse_whole(value)
        if found is None or found < lowest:
            raise Refused(expected)
        return found

    return Read(parse, expected, {"type": "integer", "minimum": lowest})


def one_of(
    choices: Sequence[str],
    *,
    aliases: Mapping[str, str] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Read:
    """One of a fixed set of words, ignoring case, with ``_`` for ``-`` or the reverse."""
    fold = {re.sub("[ _]", "-", choice.lower()): choice for choice in choices}
    fold |= {re.sub("[ _]", "-", alias.lower()): choice for alias, choice in (aliases or {}).items()}
    expected = f"one of {', '.join(choices)}"

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise Refused(expected)
        folded = re.sub("[ _]", "-", value.strip().lower())
        if folded in fold:
            return fold[folded]
        near = nearest(folded, fold)
        raise Refused(
            expected, (hints or {}).get(folded) or (f"did you mean {fold[near]!r}?" if near else "")
        )

    # JSON schema has no "ignore case": the plain words are what editors offer, the pattern is what they accept.
    pattern = f"^({'|'.join(_any_case(word) for word in fold)})$"
    return Read(parse, expected, {"anyOf": [{"enum": list(choices)}, {"type": "string", "pattern": pattern}]})


def _any_case(word: str) -> str:
    letters = []
    for letter in word:
        if letter.isalpha():
            letters.append(f"[{letter.upper()}{letter}]")
        else:
            letters.append("[-_ ]" if letter == "-" else re.escape(letter))
    return "".join(letters)


def _parse_flag(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise Refused(FLAG.expected)


def _parse_patterns(value: object) -> tuple[str, ...]:
    """Patterns as a list, as one text, or as the text of a Python list or tuple, as old files have them."""
    if isinstance(value, str):
        value = _literal(value) if value.strip()[:1] in ("(", "[") else [value]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise Refused(PATTERNS.expected)
    return tuple(value)


def _literal(text: str) -> object:
    """A Python literal, or the text itself: a pattern may begin with a bracket too."""
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return [text]
    return found if isinstance(found, list | tuple) else [text]


def _parse_device(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-z_]+(:\d{1,4})?", value.strip().lower()):
        return value.strip().lower()
    raise Refused(DEVICE.expected)


def _parse_options(value: object) -> Options:
    if not isinstance(value, Mapping):
        raise Refused(OPTIONS.expected)
    for key in value:
        if not isinstance(key, str) or not key.isidentifier():
            raise Refused(OPTIONS.expected, suggest_space(key) or f"{show(key)} is not a name")
    given = {key: item for key, item in value.items() if item is not None}
    for key, item in given.items():
        if not isinstance(item, Scalar) or (isinstance(item, float) and not math.isfinite(item)):
            raise Refused("a number, a text, true or false for each name", f"{key!r} holds {show(item)}")
    return Options(given)


def _write_options(value: object) -> object:
    assert isinstance(value, Options)
    return dict(value) or None


FLAG = Read(_parse_flag, "true or false", {"type": "boolean"})
FRACTION = number("at least 0 and less than 1", lambda value: 0 <= value < 1, minimum=0, exclusiveMaximum=1)
PART = number("a number from 0 to 1", lambda value: 0 <= value <= 1, minimum=0, maximum=1)
NOT_NEGATIVE = number("a number of at least 0", lambda value: value >= 0, minimum=0)
POSITIVE = number("a number above 0", lambda value: value > 0, exclusiveMinimum=0)
DEVICE = Read(_parse_device, "auto or a device such as cpu, cuda or cuda:1", {"type": "string"})
PATTERNS = Read(
    _parse_patterns,
    "a list of patterns such as [blocks.*.drop_path]",
    {"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}, {"type": "string"}]},
)
OPTIONS = Read(
    _parse_options,
    "names with values, such as {window: 8}",
    {"type": "object", "additionalProperties": {"type": ["number", "string", "boolean"]}},
    _write_options,
)
