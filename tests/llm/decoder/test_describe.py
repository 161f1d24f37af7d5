"""What is read from a module, and what is refused: settings that no part describes, and unknown families."""

from __future__ import annotations

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.decoder.parts import Experts, FeedForward
from tests.llm.decoder.family_models import family_model
from tests.llm.models import DECODERS


def test_windows_and_rotations_are_those_of_each_layer() -> None:
    decoder = describe_decoder(family_model("gemma3_text"), "a")
    first, second = (layer.attention for layer in decoder.layers)
    assert (first.window, second.window) == (4, None) and first.rotary is not second.rotary
    assert first.rotary is not None and second.rotary is not None
    assert not torch.equal(first.rotary.frequencies, second.rotary.frequencies)
    first, second = (layer.attention for layer in describe_decoder(family_model("gemma2"), "a").layers)
    assert first.rotary is second.rotary and (first.softcap, first.scale) == (3.0, 20**-0.5)


def test_matrices_are_named_as_in_the_state_dict() -> None:
    for name in ("mixtral", "gpt2", "opt"):
        model = llm.quantize(family_model(name), None, {"METHOD": "rtn"}, progress=False)
        decoder = describe_decoder(model.model, "a")
        found = []
        for layer in decoder.layers:
            parts = layer.feed_forward
            each = parts.experts if isinstance(parts, Experts) else (parts,)
            assert all(isinstance(one, FeedForward) for one in each)
            found += [*layer.attention.inputs, layer.attention.output]
            found += [matrix for one in each for matrix in (*one.inputs, one.down)]
        assert {matrix.name for matrix in found} == set(model.weights)
        for matrix in found:
            assert torch.equal(matrix.read(), model.weights[matrix.name].numbers())


def test_a_packed_embedding_and_head_are_one_table_with_its_factor() -> None:
    config = {"METHOD": "rtn", "HEAD": {"BIT": 8}}
    model = llm.quantize(family_model("gemma2"), None, config, progress=False).model
    decoder = describe_decoder(model, "a")
    assert decoder.embedding.storage == decoder.head.storage and decoder.embedding_factor == 8.0
    assert decoder.embedding.shape == (96, 64)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("llama", {"hidden_act": "quick_gelu"}, "do not support hidden_act='quick_gelu', only gelu, "),
        ("gemma2", {"hidden_activation": "mish"}, "do not support hidden_activation='mish', only gelu, "),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "do not support rope_type='dynamic', only default, linear, llama3, yarn, longrope",
        ),
    ],
)
def test_settings_that_change_what_is_computed_are_refused(
    name: str, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(SparsebitError, match=text):
        describe_decoder(family_model(name, **settings), "openvino")


def test_layers_of_another_kind_are_refused() -> None:
    model = family_model("qwen2, some windows")
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(
        SparsebitError, match="do not support layer_types with 'chunked_attention', only full"
    ):
        describe_decoder(model, "openvino")


def test_other_families_are_refused_by_name() -> None:
    model = DECODERS["llama"]()
    model.config.model_type = "bloom"
    with pytest.raises(
        SparsebitError, match="openvino folders are written for some architectures only"
    ) as caught:
        describe_decoder(model, "openvino")
    assert caught.value.got == "bloom" and "gemma3_text" in (caught.value.expected or "")
