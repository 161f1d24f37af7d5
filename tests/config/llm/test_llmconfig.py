"""Configs for language models: presets, rules by layer, and steps that do not go together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparsebit.config.engine.nested import leaves
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.config.llm.llmconfig import LlmConfig, load_llm_config
from sparsebit.errors import ConfigError


def config(**keys: Any) -> LlmConfig:
    return load_llm_config({"W": {"BIT": 4}, **keys})


@pytest.mark.parametrize("name", LlmConfig.preset_names())
def test_presets_load_and_come_back_as_they_were(name: str) -> None:
    loaded = load_llm_config(name)
    assert load_llm_config(loaded.to_dict()) == loaded


def test_a_rule_by_layer_and_ignored_layers() -> None:
    found = config(W={"BIT": 4, "SPECIFIC": {"*.down_proj": {"BIT": 8}}}, IGNORE=["*.gate"])
    down, up = found.matrix("a.down_proj"), found.matrix("a.up_proj")
    assert down is not None and up is not None and (down.bit, up.bit) == (8, 4)
    assert found.matrix("a.gate") is None and found.ignores("a.gate") == "*.gate"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ([], "METHOD: expected exactly one of .*gptq.*, got no step"),
        (["gptq", "rtn"], "expected exactly one of .*, got gptq, rtn"),
        (["tune"], "expected exactly one of"),
        (["awq", "gptq", "awq"], r"got awq \(before\), gptq \(solve\), awq \(before\)"),
        (["wanda"], "METHOD: expected W.SPARSITY with wanda, such as 0.5 or 2:4, got no SPARSITY"),
        (["SparseGPT"], "METHOD: expected W.SPARSITY with SparseGPT, such as 0.5 or 2:4, got no SPARSITY"),
        (
            ["tune", "gptq"],
            r"steps in the order in which they run, got tune \(after\), gptq \(solve\); first the steps",
        ),
        ({"gptq": {"follow": 2}}, "a number from 0 to 1 for option follow of gptq, not 2"),
        ("gtpq", "did you mean 'gptq'"),
    ],
)
def test_methods_that_do_not_go_together(method: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(METHOD=method)


@pytest.mark.parametrize("text", ["2:4", "'2:4'"])
def test_a_sparsity_of_n_of_m_needs_no_quotes(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{{W: {{BIT: 0, SPARSITY: {text}}}, METHOD: sparsegpt}}")
    assert load_llm_config(tmp_path / "a.yaml").W.SPARSITY == "2:4"
    for wrong in (124.5, 124, 75, 60, 2):
        with pytest.raises(ConfigError, match="the fraction of the weights to set to zero"):
            LlmConfig(W={"SPARSITY": wrong})


def test_the_how_to_page_lists_every_key_and_its_config_loads() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/language_models.md").read_text(encoding="utf-8")
    (given,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    load_llm_config(read_yaml(given, "language_models.md"))
    table = page.partition("| Key |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([A-Z_.*]+)`", table))
    for key, _ in leaves(config().to_dict()):
        assert key in named or f"*.{key.partition('.')[2]}" in named, key
