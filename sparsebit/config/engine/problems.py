"""What is wrong with a config, gathered so that all of it can be told at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsebit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake, and where it stands.

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
    source: str = ""  # when it came from somewhere else than the rest of the config, such as an override
    keys: frozenset[str] = frozenset()  # the keys whose values play a part; empty for the path alone

    def __str__(self) -> str:
        wish = f"expected {self.expected}" if self.expected else ""
        came = f"got {self.got}" if self.got else ""
        what = ", ".join(part for part in (self.message, wish, came) if part)
        told = "; ".join(part for part in (what, self.hint) if part)
        return ": ".join(part for part in (self.source, self.path, told) if part)


class ConfigProblems(ConfigError):
    """Everything wrong with one config. ``problems`` holds the parts, for a report that lays them out itself."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source, self.problems = source, tuple(problems)
        if len(self.problems) == 1:
            only = self.problems[0]
            super().__init__(str(only) if only.source else f"{source}: {only}")
            self.where = f"{only.source or source}: {only.path}" if only.path else only.source or source
            self.expected, self.got = only.expected or None, only.got or None
            self.hint = only.hint or None
        else:
            lines = [f"{source}: {len(self.problems)} problems", *(f"  {one}" for one in self.problems)]
            super().__init__("\n".join(lines))
            self.where = source

    def __reduce__(self) -> tuple[type[ConfigProblems], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.source, self.problems)


def raise_problems(source: str, problems: Iterable[Problem]) -> None:
    """Raise them all as one error; return when there are none."""
    if found := tuple(dict.fromkeys(problems)):
        raise ConfigProblems(source, found)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, however it was capitalised; None when nothing is close.

    Example:
        >>> nearest("Bitt", ["BIT", "TYPE"])
        'BIT'
    """
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def suggest(name: str, names: Sequence[str]) -> str:
    """Advice for a name that is not among ``names``."""
    near = nearest(name, names)
    return f"did you mean {near!r}?" if near else f"there are: {', '.join(names)}"


def show(value: object) -> str:
    """A value as it appears in a message: never longer than a line."""
    text = repr(dict(value)) if isinstance(value, dict) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
