"""A folder of a model is followed only as far as it brings no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparsebit.errors import ArtifactError
from sparsebit.llm.folders.folder_config import read_config, require_no_code
from sparsebit.llm.folders.source import WeightSource, load_module
from tests.llm.models import DECODERS


@pytest.mark.parametrize(
    "change",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel@main:attention"},
        {"experts_implementation": "someone/kernel"},
        {"text_config": {"attn_implementation": "someone/kernel"}},
        {"attn_implementation": {"text_config": "someone/kernel"}},
        {"sub_configs": [{"attn_implementation": ["someone/kernel"]}]},
    ],
)
def test_a_kernel_of_a_hub_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    for read in (WeightSource.open, load_module, read_config):
        with pytest.raises(
            ArtifactError, match=r"_implementation names code that transformers would download"
        ):
            read(tmp_path)


def test_settings_that_are_no_kernels_are_taken(tmp_path: Path) -> None:
    require_no_code(
        {"attn_implementation": "eager", "_name_or_path": "someone/model", "limit": [0.0, 1.0]}, ""
    )
    DECODERS["llama"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"time_limit": float("inf")}))
    assert read_config(tmp_path).hidden_size == config["hidden_size"]


def test_adapters_do_not_lead_to_another_model(tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/model"}))
    for read in (WeightSource.open, load_module):
        with pytest.raises(ArtifactError, match=r"holds adapters(.|\n)*the folder of the base model"):
            read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff"])
def test_a_config_that_is_no_json_is_our_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"config\.json cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ArtifactError, match=r"config\.json cannot be read: No such file"):
        read_config(tmp_path)
