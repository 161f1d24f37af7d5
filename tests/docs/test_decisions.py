"""Decision pages: each is in the list under its own title, with its status, and names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
PAGES = [page for page in sorted(FOLDER.glob("[0-9]*.md")) if page.name != "000-template.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_parts_of_the_template_and_its_row_in_the_list(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title = re.match(r"# (\d{3}): (.+)\n\nStatus: (accepted|replaced by \d{3})", text)
    assert title, "begin with '# NNN: title' and 'Status: accepted' or 'Status: replaced by NNN'"
    assert page.name.startswith(title[1])
    assert all(f"\n## {part}\n" in text for part in ("Question", "Decision", "Evidence"))
    row = f"| {title[1]} | [{title[2]}]({page.name}) | {title[3]} |"
    assert row in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()


def test_the_list_has_nothing_else() -> None:
    rows = re.findall(r"^\| \d{3} \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_and_results_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"(?:tests|benchmarks|examples)/[\w./]+\w", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
