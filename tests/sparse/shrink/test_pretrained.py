"""A pruned model of transformers keeps its class: smaller config, saved, loaded, equal, and generating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.errors import GraphError
from sparsebit.sparse import SparseModel, prune

transformers = pytest.importorskip("transformers")

HALF = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
IDS = torch.arange(12).reshape(2, 6)


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(num_key_value_heads=2, **SIZES)
    return transformers.LlamaForCausalLM(config).eval()  # type: ignore[no-any-return]


def bert() -> nn.Module:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES)).eval()  # type: ignore[no-any-return]


CASES = {
    "llama": (llama, {"input_ids": IDS, "use_cache": False}),
    "bert": (bert, {"input_ids": IDS}),
}
NAMED = ("hidden_size", "intermediate_size", "num_attention_heads")


@pytest.mark.parametrize("name", sorted(CASES))
def test_saved_loaded_and_equal(name: str, tmp_path: Path) -> None:
    make, inputs = CASES[name]
    model = make()
    small: Any = prune(model, {"SPARSER": HALF}, example_kwargs=inputs)
    assert type(small) is type(model)
    assert [getattr(small.config, key) for key in NAMED] == [16, 24, 2]
    changed = {
        key for key, value in small.config.to_dict().items() if value != model.config.to_dict().get(key)
    }
    assert changed <= {*NAMED, "num_key_value_heads", "head_dim"}
    small.save_pretrained(tmp_path)
    again = type(small).from_pretrained(tmp_path).eval()
    smodel = SparseModel(model, {"SPARSER": HALF}, example_kwargs=inputs)
    smodel.calc_params()
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, small(**inputs).logits)
        # Masked, at full size.
        assert torch.allclose(smodel(**inputs).logits, small(**inputs).logits, atol=1e-5)
    if name == "llama":
        assert small.config.num_key_value_heads == 1
        options = {
            "attention_mask": torch.ones_like(IDS),
            "max_new_tokens": 4,
            "do_sample": False,
            "pad_token_id": 0,
        }
        assert torch.equal(again.generate(IDS, **options), small.generate(IDS, **options))


def test_layers_that_end_uneven_are_told_and_come_as_a_graph() -> None:
    _, inputs = CASES["llama"]
    config = {"SPARSER": {**HALF, "SPECIFIC": [{"model.layers.0.mlp.gate_proj": {"RATIO": 0.25}}]}}
    smodel = SparseModel(llama(), config, example_kwargs=inputs)
    smodel.calc_params()
    with pytest.raises(
        GraphError, match=r"no config of LlamaForCausalLM[\s\S]*gate_proj keeps 36[\s\S]*layer equally"
    ):
        smodel.shrink("pretrained")
    with pytest.warns(UserWarning, match="save_pretrained cannot be used for this model: no config"):
        own = smodel.shrink("module")
    assert type(own).__name__ == "LlamaForCausalLM"
    with pytest.warns(UserWarning, match="the smaller model is a graph, not a LlamaForCausalLM: no config"):
        small = prune(llama(), config, example_kwargs=inputs)
    with torch.no_grad():
        assert torch.allclose(small(**inputs).logits, own(**inputs).logits, atol=1e-5)


def test_fewer_heads_than_a_class_can_have_are_told() -> None:
    _, inputs = CASES["bert"]
    config = {"SPARSER": {**HALF, "RATIO": 0.0, "SPECIFIC": [{"*.query": {"RATIO": 0.5}}]}}
    smodel = SparseModel(bert(), config, example_kwargs=inputs)
    smodel.calc_params()
    with pytest.raises(
        GraphError,
        match=r"no config of BertFor\w+ has fewer heads of the same width\n"
        r"  got: +the class computes the width of a head as hidden_size / num_attention_heads \(32 / 4\)",
    ):
        smodel.shrink("pretrained")
    with torch.no_grad():  # as a graph it is right
        assert torch.allclose(smodel.shrink()(**inputs).logits, smodel(**inputs).logits, atol=1e-5)


def test_the_tensor_that_no_config_explains_is_named() -> None:
    torch.manual_seed(0)
    config = transformers.OlmoeConfig(num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, **SIZES)
    model = transformers.OlmoeForCausalLM(config).eval()  # its norm of all queries is as wide as the model
    pruning = {"SPARSER": {**HALF, "RATIO": 0.0, "SPECIFIC": [{"*.q_proj": {"RATIO": 0.5}}]}}
    smodel = SparseModel(model, pruning, example_kwargs=CASES["llama"][1])
    smodel.calc_params()
    with pytest.raises(
        GraphError,
        match=r"q_norm.weight is \(32,\) instead of \(16,\) with num_attention_heads=2, num_key_value_heads=1",
    ):
        smodel.shrink("pretrained")


def test_types_buffers_and_what_is_trained_stay() -> None:
    model = llama()
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.bfloat16()  # as loaded from a file: the buffers stay in float32
        parameter.requires_grad_("norm" in name)
    small = prune(model, {"SPARSER": HALF}, example_kwargs=CASES["llama"][1])
    assert {buffer.dtype for buffer in small.buffers()} == {torch.float32}
    assert all(one.requires_grad == ("norm" in name) for name, one in small.named_parameters())
    assert {one.dtype for one in small.parameters()} == {torch.bfloat16}
