"""The picture of the export report in the README shows today's report."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def pictures() -> Any:
    """The script, which is not in a package."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(drawing: str) -> set[str]:
    """What an SVG says, without what depends on the processor: numbers, and whose rounding a mismatch is."""
    shown = html.unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", drawing))).replace("\xa0", " ")
    return set(re.findall(r"[A-Za-z_./]{2,}", shown)) - {"kernel"}


def test_the_picture_of_the_export_report_has_the_words_of_a_report_made_now() -> None:
    script = pictures()
    made = script.draw(script.export_report())
    kept = (ROOT / "docs" / "assets" / "export_report.svg").read_text(encoding="utf-8")
    assert {"planned", "integers", "QLinearConv"} <= words(made)
    assert words(kept) == words(made), "make the pictures again: python docs/pictures.py"
    assert "http" not in kept.replace("http://www.w3.org/2000/svg", ""), "a font would be loaded"
