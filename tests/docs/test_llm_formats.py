"""The tables of formats and families name what the library can write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sparsebit.llm.decoder.families import FAMILIES as OF_DECODERS
from sparsebit.llm.formats import FORMATS
from sparsebit.llm.formats.gguf.families import FAMILIES as OF_GGUF

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "llm_formats.md"


def table(head: str) -> Iterator[list[str]]:
    """The rows of the table with this first cell, cell by cell."""
    lines = PAGE.read_text(encoding="utf-8").split(f"| {head} |")[1].splitlines()[2:]
    for line in lines[: lines.index("")]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def test_the_table_of_formats_has_every_format() -> None:
    assert {row[0].strip("`") for row in table("format")} == set(FORMATS)


def test_the_table_of_families_says_which_formats_hold_each() -> None:
    known = {plain(kind): kind for kind in {*OF_DECODERS, *OF_GGUF}}
    seen: set[str] = set()
    for names, gguf, *graphs in table("family (`model_type`)"):
        kinds = {known[word] for word in map(plain, re.split(r"[,`()]| and ", names)) if word in known}
        assert kinds, names
        seen |= kinds
        assert {kind in OF_GGUF for kind in kinds} == {gguf.startswith("yes")}, names
        assert {kind in OF_DECODERS for kind in kinds} == {cell.startswith("yes") for cell in graphs}, names
    assert seen == set(known.values())
