"""The Python in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.forks import ROOT, Program, run_programs

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "```python" in page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    """In a process of its own, as a reader would run them: what one page registers, no other test sees."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    source = tmp_path / "page.py"
    source.write_text("\n\n".join(blocks), encoding="utf-8")  # a real file: errors name its lines
    codes, printed = run_programs([Program([source.name], strict=True)], tmp_path)
    assert codes == [0], printed[0]
