"""How numbers and this library's objects are displayed: as text, in a terminal of a given width, in a notebook."""

from __future__ import annotations

import dataclasses
import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table

WIDE = 100_000  # characters: wider than any table
# Control characters except the end of a line and the tab, and those that change the direction of text.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
FEWEST = 2  # columns that a table keeps in the narrowest terminal


def in_notebook(value: Any) -> str:
    """One of this library's objects as HTML; as a method of its class: ``_repr_html_ = in_notebook``.

    The display code is in ``integrations``, a higher layer, and is imported when a notebook needs it.
    """
    from sparsebit.integrations.notebook import to_html

    return to_html(value)


def as_text(value: Any) -> str:
    """The text that a terminal would show, in plain characters and as wide as necessary: nothing is wrapped or cut.

    As a method of a class with ``__rich__``: ``__str__ = as_text``.

    Example:
        >>> from rich.table import Table
        >>> table = Table("layer", "bits")
        >>> table.add_row("features.0.conv", "8")
        >>> print(as_text(table))
        ┏━━━━━━━━━━━━━━━━━┳━━━━━━┓
        ┃ layer           ┃ bits ┃
        ┡━━━━━━━━━━━━━━━━━╇━━━━━━┩
        │ features.0.conv │ 8    │
        └─────────────────┴──────┘
    """
    console = _wide_console()
    with console.capture() as captured:
        console.print(value, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in printable(captured.get()).split("\n")).strip("\n")


def printable(text: str) -> str:
    """The same text with terminal control characters escaped; names may come from data.

    Example:
        >>> print(printable("a\\x1b[31m name\\n"), end="")
        a\\x1b[31m name
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def print_to(console: Console, value: Any) -> None:
    """Show a value in a terminal, fitted to its width; names in it are not interpreted as markup."""
    from rich.segment import Segments
    from rich.text import Text

    fitted = Text(value) if isinstance(value, str) else fit(value, console.width)
    parts = console.render(fitted)
    console.print(
        Segments([part if part.control else part._replace(text=printable(part.text)) for part in parts]),
        end="",
    )


def fit(value: Any, width: int) -> RenderableType:
    """The same for a terminal: tables are narrowed to ``width`` characters without breaking a word.

    Columns with sentences wrap first. Where that is not enough, columns on the right are left out, and a line under
    the table names them.
    """
    from rich.console import Group
    from rich.table import Table

    if hasattr(value, "__rich__"):
        value = value.__rich__()
    if isinstance(value, Group):
        return Group(*(fit(part, width) for part in value.renderables))
    return _fit_table(value, width) if isinstance(value, Table) else value


def short_number(count: int) -> str:
    """A count in three digits or so.

    Example:
        >>> short_number(25_557_032), short_number(640)
        ('25.6 M', '640')
    """
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count / size < 999.5 else f"{count / size:.0f} {unit}"
    return str(count)


def short_bytes(count: int) -> str:
    """Bytes in decimal units, as file managers count them.

    Example:
        >>> short_bytes(102_228_128)
        '102 MB'
    """
    text = short_number(count)
    return f"{text}B" if " " in text else f"{text} B"


def _fit_table(table: Table, width: int) -> RenderableType:
    import copy

    from rich.console import Group
    from rich.text import Text

    console, kept = _wide_console(), list(table.columns)
    ranges = [_widths(console, column) for column in kept]
    natural = sum(most for _, most in ranges)
    border = console.measure(table).maximum - natural  # lines and spaces between the columns
    if natural + border <= width:
        return table
    between = border / max(len(kept), 1)
    while len(kept) > FEWEST and sum(least for least, _ in ranges) + between * len(kept) > width:
        kept.pop()
        ranges.pop()
    widths = [most for _, most in ranges]
    while (over := sum(widths) + between * len(kept) - width) > 0:
        index = max(range(len(kept)), key=lambda index: widths[index] - ranges[index][0])
        if (room := widths[index] - ranges[index][0]) <= 0:
            break
        widths[index] -= min(room, -int(-over // 1))
    narrow = copy.copy(table)
    narrow.columns = [
        dataclasses.replace(column, width=most, overflow="fold")
        for column, most in zip(kept, widths, strict=True)
    ]
    left_out = [str(column.header) for column in table.columns[len(kept) :]]
    if not left_out:
        return narrow
    words = f"no room for {', '.join(left_out)}: make the window wider, or add | less -S"
    return Group(narrow, Text(words))


def _widths(console: Console, column: Column) -> tuple[int, int]:
    """The lengths of the longest word and of the longest line in a column."""
    cells = [console.measure(cell) for cell in (column.header, column.footer, *column.cells)]
    return max(cell.minimum for cell in cells), max(cell.maximum for cell in cells)


def _wide_console() -> Console:
    from rich.console import Console

    return Console(file=io.StringIO(), width=WIDE, color_system=None, force_terminal=False)
