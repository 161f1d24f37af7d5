"""The keys of a file beside tensors: sizes as each family spells them, and windows that llama.cpp has no key for."""

from __future__ import annotations

import logging

import pytest

from sparsebit.llm.formats.gguf.families import FAMILIES
from sparsebit.llm.formats.gguf.settings import add_settings, key_value_heads
from tests.llm.formats.gguf.family_models import make_model
from tests.llm.formats.gguf.test_tokenizer import Writer


def settings_of(name: str, **settings: object) -> dict[str, object]:
    writer = Writer()
    add_settings(writer, make_model(name, **settings).config, FAMILIES[name])
    return writer.added


def test_sizes() -> None:
    found = settings_of("gpt2")
    assert (found["feed_forward_length"], found["head_count_kv"], found["context_length"]) == (256, 4, 64)
    assert found["layer_norm_eps"] == 1e-5 and "layer_norm_rms_eps" not in found
    assert settings_of("falcon")["feed_forward_length"] == 96
    assert settings_of("olmo")["layer_norm_eps"] == 1e-5 and settings_of("olmo")["clamp_kqv"] == 1.0
    assert settings_of("mixtral")["expert_count"] == 4 and settings_of("mixtral")["expert_used_count"] == 2


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 1), ({"multi_query": False}, 4), ({"new_decoder_architecture": True}, 2)],
)
def test_heads_of_keys_in_falcon(settings: dict[str, object], count: int) -> None:
    assert key_value_heads(make_model("falcon", **settings).config) == count


def test_windows(caplog: pytest.LogCaptureFixture) -> None:
    found = settings_of("gemma3_text")
    assert (found["sliding_window"], found["sliding_window_pattern"], found["context_length"]) == (8, 3, 64)
    assert "sliding_window" not in settings_of("gemma3_text", layer_types=["full_attention"] * 3)
    with caplog.at_level(logging.WARNING, "sparsebit"):
        found = settings_of("mistral", sliding_window=16)
    assert found["context_length"] == 16 and "sliding_window" not in found
    assert (
        "no sliding windows for mistral: the file's context length is the window, 16 instead of 64"
        in caplog.text
    )
