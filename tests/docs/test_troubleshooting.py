"""Messages that the page quotes are messages that the library has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_quoted_message_is_in_the_source() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 40
    source = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "sparsebit").rglob("*.py"))
    source = re.sub(r'"\s+f?"', "", source)  # texts that are written over several lines
    assert [text for text in quoted if text not in source] == []
