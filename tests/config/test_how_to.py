"""The how-to page: what it shows works, and it leaves no key out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsebit.config.engine.nested import leaves
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.config.quantization.plugins import OBSERVER_RULES, RULES
from sparsebit.config.quantization.presets import preset_names
from sparsebit.config.quantization.qconfig import load_qconfig
from tests.config.strategies import plain_config

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "configure.md"
TEXT = PAGE.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def forget_median() -> Iterator[None]:
    yield
    OBSERVER_RULES.remove("median")


def test_the_programs_run(capsys: pytest.CaptureFixture[str], forget_median: None) -> None:
    for number, block in enumerate(blocks("python")):
        exec(compile(block, f"{PAGE.name} block {number}", "exec"), {})
    assert capsys.readouterr().out.endswith("uint8 per-tensor-affine, uniform, median(window=8)\n")


@pytest.mark.parametrize("block", blocks("yaml"))
def test_the_files_load(block: str) -> None:
    data = read_yaml(block, PAGE.name)
    assert isinstance(data, dict)
    load_qconfig(data)


def test_every_key_is_in_the_table() -> None:
    table = TEXT.partition("| Key |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([A-Z_.*]+)`", table))
    for key, _ in leaves(load_qconfig(plain_config()).to_dict()):
        assert key in named or f"*{key[1:]}" in named, key
    assert {"FIRST_LAST", "*.QUANTIZER.OPTIONS"} <= named


def test_every_name_and_preset_is_mentioned() -> None:
    for name in [*preset_names(), *RULES["quantizer"], *RULES["observer"]]:
        assert f"`{name}`" in TEXT, name


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / link).exists(), link
