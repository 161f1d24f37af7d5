"""The how-to page leaves no key and no criterion out, and its files load. Its programs are run with all others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsebit.config.engine.nested import leaves
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.config.pruning.sconfig import load_sconfig
from sparsebit.sparse.evidence.statistic import STATISTICS
from sparsebit.sparse.sparsers import SPARSERS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "prune.md"
TEXT = PAGE.read_text()


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_the_files_load(block: str) -> None:
    data = read_yaml(block, PAGE.name)
    assert isinstance(data, dict)
    load_sconfig(data)


def test_every_key_is_in_the_table() -> None:
    table = TEXT.partition("| Key |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([A-Z_.]+)`", table))
    config = load_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "random", "RATIO": 0.5}})
    assert {key for key, _ in leaves(config.to_dict())} | {"SPARSER.OPTIONS"} <= named


def test_every_criterion_and_its_settings_are_named() -> None:
    for name, kind in SPARSERS.items():
        assert f"`{name}`" in TEXT
        assert all(f"`{option}`" in TEXT for option in kind.__dataclass_fields__)  # type: ignore[attr-defined]
    assert all(f"`{need}`" in TEXT for need in STATISTICS)


def test_links_lead_somewhere() -> None:
    assert (PAGE.parent / "../sconfig.schema.json").exists()
