"""The mistakes in a config, collected so that all are reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsebit.errors import ConfigError

MOST_SHOWN = 20  # problems of one message; the rest are counted
_LONGEST = 60  # characters of one key or value in a message


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake, and where it is.

    Example:
        >>> print(Problem(path="W.QUANTIZER.BIT", expected="an integer", got="'four'", hint="write 4"))
        W.QUANTIZER.BIT: expected an integer, got 'four'; write 4
        >>> print(Problem(path="W.BITS", message="unknown key"))
        W.BITS: unknown key
    """

    path: str = ""
    message: str = ""
    expected: str = ""
    got: str = ""
    hint: str = ""
    source: str = ""  # if it came from elsewhere than the rest of the config, such as an override
    keys: frozenset[str] = frozenset()  # every key involved

    def __str__(self) -> str:
        expected = f"expected {self.expected}" if self.expected else ""
        got = f"got {self.got}" if self.got else ""
        what = ", ".join(part for part in (self.message, expected, got) if part)
        text = "; ".join(part for part in (what, self.hint) if part)
        return ": ".join(part for part in (self.source, self.path, text) if part)


class ConfigProblems(ConfigError):
    """All mistakes in one config. ``problems`` holds all of them; the message shows the first ones."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source, self.problems = source, tuple(problems)
        if len(self.problems) == 1:
            only = self.problems[0]
            super().__init__(str(only) if only.source else f"{source}: {only}")
            self.where = f"{only.source or source}: {only.path}" if only.path else only.source or source
            self.expected, self.got = only.expected or None, only.got or None
            self.hint = only.hint or None
        else:
            lines = [f"{source}: {len(self.problems)} problems"]
            lines += [f"  {one}" for one in self.problems[:MOST_SHOWN]]
            if len(self.problems) > MOST_SHOWN:
                lines.append(f"  and {len(self.problems) - MOST_SHOWN} more")
            super().__init__("\n".join(lines))
            self.where = source

    def __reduce__(self) -> tuple[type[ConfigProblems], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.source, self.problems)


def raise_problems(source: str, problems: Iterable[Problem]) -> None:
    """Raise one error for all problems; return if there are none."""
    if found := tuple(dict.fromkeys(problems)):
        raise ConfigProblems(source, found)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, ignoring case; None if no name is similar.

    Example:
        >>> nearest("Bitt", ["BIT", "TYPE"])
        'BIT'
    """
    if len(name) > _LONGEST:
        return None
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def suggest(name: str, names: Sequence[str]) -> str:
    """Advice for a name that is not among ``names``."""
    if spaced := suggest_space(name):
        return spaced
    near = nearest(name, names)
    return f"did you mean {near!r}?" if near else f"there are: {', '.join(names)}"


def suggest_space(name: object) -> str:
    """Advice for YAML such as ``{BIT:3}``, which is the key ``"BIT:3"`` without a value; empty for other names.

    Example:
        >>> suggest_space("BIT:3")
        "write 'BIT: 3', with a space after the colon"
    """
    key, colon, value = str(name).partition(":")
    return f"write {shorten(f'{key}: {value}')!r}, with a space after the colon" if colon else ""


def either(words: Iterable[str]) -> str:
    """``a, b or c``."""
    *most, last = list(words)
    return f"{', '.join(most)} or {last}" if most else last


def shorten(text: str) -> str:
    """The text, shortened to part of a line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def show(value: object) -> str:
    """A value as it is shown in a message, never longer than part of a line."""
    if isinstance(value, str | bytes):
        value = value[: 2 * _LONGEST]
    try:
        return shorten(repr(dict(value) if isinstance(value, dict) else value))
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number with thousands of digits"
