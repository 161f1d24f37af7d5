"""The site: every page is listed, links lead somewhere, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def site() -> dict[str, Any]:
    """mkdocs.yml as data."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return loaded


def listed(entry: Any) -> list[str]:
    """The pages in a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in listed(part)]


def test_every_page_is_in_the_navigation() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    wanted = {page for page in pages if not page.startswith("decisions/0")}
    assert set(listed(site()["nav"])) == wanted, "add the page to nav in mkdocs.yml"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_to_files_of_the_site(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def cells(row: str) -> int:
    """Of a row of a table; a bar in code is none."""
    return len(re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) - 2


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_rows_of_a_table_have_as_many_cells_as_its_header(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, *rows = table.splitlines()
        assert [row for row in rows if cells(row) != cells(header)] == []


REFERENCES = [
    name
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", REFERENCES)
def test_names_in_the_reference_exist_where_it_says(name: str) -> None:
    """The site reads source files, so a name must stand in the file that defines it."""
    found = pkgutil.resolve_name(name)
    if not inspect.ismodule(found):
        assert found.__module__ == name.rpartition(".")[0]


def test_nothing_is_loaded_from_another_server() -> None:
    assert site()["theme"]["font"] is False
    assert "extra_javascript" not in site()


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install -e .[docs]"
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for page in listed(site()["nav"]):
        html = page.replace("README.md", "index.md").replace(".md", ".html")
        assert (tmp_path / "site" / html).is_file(), html
    assert "QuantModel" in (tmp_path / "site" / "reference" / "quantization.html").read_text(encoding="utf-8")
