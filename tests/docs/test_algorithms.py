"""A page for every algorithm that a config can name, and a config on it that is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparsebit.config import load_qconfig, load_sconfig, preset_text
from sparsebit.config.llm.llmconfig import load_llm_config
from sparsebit.config.llm.methods import METHOD_RULES
from sparsebit.quantization import OBSERVERS, QUANTIZERS
from sparsebit.quantization.algorithms import ALGORITHMS
from sparsebit.sparse import SPARSERS

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
PAGES = [page for page in sorted(FOLDER.glob("*/*.md")) if page.name != "index.md"]
BUILT_IN = "sparsebit."


def built_in(registry: Any) -> set[str]:
    """Names that the library itself registers; other tests may add theirs."""
    return {name for name in registry if getattr(registry[name], "__module__", BUILT_IN).startswith(BUILT_IN)}


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("observers", lambda: built_in(OBSERVERS)),
        ("quantizers", lambda: built_in(QUANTIZERS)),
        ("recovery", lambda: built_in(ALGORITHMS)),
        ("criteria", lambda: built_in(SPARSERS)),
        ("llm", lambda: set(METHOD_RULES)),
    ],
)
def test_every_algorithm_has_a_page_and_its_family_lists_it(
    family: str, names: Callable[[], set[str]]
) -> None:
    files = {page.stem for page in (FOLDER / family).glob("*.md")} - {"index"}
    assert files == {name.replace("+", "_plus") for name in names()}
    index = (FOLDER / family / "index.md").read_text(encoding="utf-8")
    assert all(f"({file}.md)" in index for file in files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_says_all_it_should_and_its_config_is_accepted(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "```text\n" in text, "no equation"
    for row in ("Name in configs", "Source", "Helps", "Hurts"):
        assert re.search(rf"^\| {row} \| .+ \|$", text, re.MULTILINE), row
    (given,) = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL))
    if page.parent.name == "criteria":
        load_sconfig(given)
    elif page.parent.name == "llm":
        load_llm_config(given)
    else:
        load_qconfig(merged(yaml.safe_load(preset_text("w4a8")), given))


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: merged(base.get(key) or {}, value) if isinstance(value, dict) else value
        for key, value in more.items()
    }
    return {**base, **both}
