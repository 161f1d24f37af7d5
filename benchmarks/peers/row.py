"""One line of the comparison: a tool, a model, a setting, and what was measured or why nothing was."""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

BEGIN, END = "# user: begin", "# user: end"
NOT_YET = "not measured yet"  # how the reason of a row begins that no run has tried


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one tool made of one model in one setting.

    Example:
        >>> failed_row("peer", "net", "W8A8", "ImportError: no module").measures
        {}
    """

    peer: str
    version: str
    model: str
    setting: str
    measures: dict[str, float | None]  # by the keys of the part's columns; None where it does not apply
    lines: int | None  # lines a user writes, counted in the script
    note: str = ""
    failed: str = ""  # the exact reason; `measures` is empty then
    commit: str = ""  # of this repository when the row was measured; the run fills it in


@dataclass(frozen=True, kw_only=True)
class Column:
    """A measure in the table of a part."""

    key: str
    heading: str
    better: Literal["higher", "lower", ""] = ""  # the best value of each model and setting is printed bold
    digits: int = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says to every part."""

    venvs: Path  # where the peers are installed, one folder each
    work: Path  # scratch files of this part, kept between peers
    threads: int = 1
    quick: bool = False  # few samples: does everything run?
    models: tuple[str, ...] = ()  # of the part's models; all if empty
    settings: tuple[str, ...] = ()  # how the names of settings begin; all if empty

    def wants(self, setting: str) -> bool:
        """Whether this setting is to be measured."""
        return not self.settings or setting.startswith(self.settings)


def failed_row(peer: str, model: str, setting: str, reason: str, version: str = "") -> Row:
    """The row of a tool that cannot run here."""
    return Row(
        peer=peer, version=version, model=model, setting=setting, measures={}, lines=None, failed=reason
    )


def row_from(content: dict[str, Any]) -> Row:
    """A row as a result file keeps it."""
    return Row(**content)


def row_as_dict(row: Row) -> dict[str, Any]:
    """What a result file keeps of a row."""
    return asdict(row)


def count_lines(script: Path) -> int:
    """Lines of code between the comments ``# user: begin`` and ``# user: end`` of a script.

    Blank lines, comments and docstrings do not count; a statement over several lines counts each of them.
    """
    text = script.read_text(encoding="utf-8")
    inside = _marked_lines(text, script)
    documentation = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }  # fmt: skip
    lines = text.splitlines()
    return sum(
        1
        for number in inside
        if number not in documentation
        and lines[number - 1].strip()
        and not lines[number - 1].strip().startswith("#")
    )


def _marked_lines(text: str, script: Path) -> list[int]:
    inside: list[int] = []
    counting = seen = False
    for number, line in enumerate(text.splitlines(), 1):
        mark = line.strip()
        if mark in (BEGIN, END):
            if counting == (mark == BEGIN):
                raise ValueError(f"{script}:{number}: {mark!r} without its counterpart")
            counting, seen = mark == BEGIN, True
        elif counting:
            inside.append(number)
    if counting or not seen:
        raise ValueError(f"{script}: expected the comments {BEGIN!r} and {END!r}")
    return inside
