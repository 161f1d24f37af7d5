"""The table of families: each has a model in the tests, and refuses settings with which it computes something else."""

from __future__ import annotations

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.decoder.families import FAMILIES
from tests.llm.decoder.family_models import VARIANTS, family_model


def test_every_family_has_a_variant() -> None:
    assert {kind for kind, _ in VARIANTS.values()} == set(FAMILIES)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before=False"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim other than hidden_size"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
        ("falcon, one head of keys", {"alibi": True}, "alibi"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm"),
        ("olmoe", {"clip_qkv": 1.0}, "clip_qkv"),
    ],
)
def test_settings_with_which_a_family_computes_something_else_are_refused(
    name: str, settings: dict[str, object], text: str
) -> None:
    kind, _ = VARIANTS[name]
    with pytest.raises(SparsebitError, match=f"openvino folders of {kind} models do not support {text}"):
        describe_decoder(family_model(name, **settings), "openvino")
