"""Commands in the documents are commands that `sparsebit` and `make` take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sparsebit.cli import COMMANDS
from sparsebit.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("README*.md"))]


def commands(text: str) -> list[str]:
    """Lines of shell blocks, and code in the text, that call `sparsebit`."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`(sparsebit [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line for block in blocks for line in block.splitlines()] + inline
    return [
        line for line in lines if line.startswith("sparsebit ") and not re.search(r"…|\.\.\.|\||--help", line)
    ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page.read_text(encoding="utf-8"))], ids=lambda page: page.stem
)
def test_commands_parse(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "demo" or len(words) == 1:  # a command's name in a sentence
            continue
        _, unknown = build_parser(COMMANDS, words).parse_known_args(words)
        assert not unknown, f"{page.name}: {line}"
