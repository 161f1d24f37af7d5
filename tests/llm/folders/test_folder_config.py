"""A folder of a model is followed only as far as it brings no code."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsebit.demo import language_model
from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.llm.folders.folder_config import read_config, require_no_code
from sparsebit.llm.folders.source import WeightSource, load_module
from sparsebit.llm.tokens import read_tokenizer
from tests.llm.models import DECODERS, tokenizer


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


def test_a_backbone_of_a_hub_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def connect(*place: object, **options: object) -> None:
        asked.append(place)
        raise OSError("no network in tests")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, connect)
    DECODERS["llama"]().save_pretrained(tmp_path)
    config = {"model_type": "detr", "use_pretrained_backbone": True, "backbone": "someone/model"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_timm_backbone": False}))
    for read in (WeightSource.open, load_module):
        with pytest.raises(ArtifactError, match="transformers cannot"):
            read(tmp_path)
    assert not asked


@pytest.mark.parametrize("key", ["vocab", "merges"])
def test_a_vocabulary_outside_the_folder_is_not_read(key: str, tmp_path: Path) -> None:
    tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    place = tmp_path / "tokenizer_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {key: "/dev/zero"}))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        ArtifactError, match=rf"name a file that transformers would read(.|\n)*{key}: '/dev/zero'"
    ):
        read_tokenizer(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        for read in (WeightSource.open, load_module, read_tokenizer):
            with pytest.raises(ArtifactError, match=rf"{name} is not a file\n +next: +remove it"):
                read(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("")


def test_without_transformers_an_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for needs_it in (language_model, lambda: read_config(tmp_path)):
        with pytest.raises(SparsebitError, match=r"'transformers', which is not installed\n.*\[llm\]"):
            needs_it()
