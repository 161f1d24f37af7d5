"""Adapter files: the way back, real peft where it is installed, and damaged ones."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.lora import add_lora, files, load_lora, remove_lora, save_lora
from sparsebit.llm.lora.attach import lora_layers
from tests.llm.models import DECODERS, sharp, tokens

CONFIG = {"W": {"BIT": 4}, "METHOD": "rtn"}


def adapted() -> llm.LanguageModel:
    model = llm.quantize(sharp("llama"), None, CONFIG, progress=False)
    add_lora(model, rank=4, layers=("*.q_proj", "*.down_proj"))
    torch.manual_seed(0)
    for _, layer in lora_layers(model.model):
        torch.nn.init.normal_(layer.lora_B, std=0.1)
    return model


@torch.no_grad()
def test_the_way_back_and_damage(tmp_path: Path) -> None:
    model, ids = adapted(), tokens(12)[None]
    wanted = model(ids).logits
    save_lora(model, tmp_path, base="tiny")
    remove_lora(model)
    with pytest.raises(SparsebitError, match="has no adapters"):
        save_lora(model, tmp_path / "never")
    assert len(load_lora(model, tmp_path)) == 6
    assert torch.equal(model(ids).logits, wanted)
    remove_lora(model)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "r": 10**12}))
    with pytest.raises(SparsebitError, match="does not fit"):
        load_lora(model, tmp_path)  # before memory of that rank is asked for
    with pytest.raises(SparsebitError, match="the folder contains no adapters"):
        load_lora(model, tmp_path / "nowhere")
    (tmp_path / "adapter_config.json").write_bytes(b'{"peft_type": "\xdb"}')
    with pytest.raises(SparsebitError, match="cannot be read"):
        load_lora(model, tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "IA3"}))
    with pytest.raises(SparsebitError, match="peft_type"):
        load_lora(model, tmp_path)


def test_adapters_of_another_model_are_refused_and_change_nothing(tmp_path: Path) -> None:
    model = adapted()
    save_lora(model, tmp_path)
    with pytest.raises(SparsebitError, match="already has an adapter"):
        load_lora(model, tmp_path)
    narrow, other = (
        llm.quantize(one, None, CONFIG, progress=False)
        for one in (llm.prune(DECODERS["llama"](), hidden=0.5), sharp("gpt2"))
    )
    with pytest.raises(
        SparsebitError, match=r"lora_A of '.*down_proj' is missing or does not fit[\s\S]*\(4, 64\)"
    ):
        load_lora(narrow, tmp_path)
    with pytest.raises(
        SparsebitError,
        match=r"for a packed layer 'model.layers.0.mlp.down_proj', which the model does not have",
    ):
        load_lora(other, tmp_path)
    assert not any(lora_layers(narrow.model)) and not any(lora_layers(other.model))
    with pytest.raises(SparsebitError, match="LlamaForCausalLM is not a quantized language model"):
        load_lora(sharp("llama"), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_rslora", True),
        ("rank_pattern", {"q_proj": 8}),
        ("bias", "all"),
        ("alora_invocation_tokens", [1, 2]),
        ("init_lora_weights", "pissa_niter_4"),
    ],
)
def test_options_of_peft_that_compute_something_else_are_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    model = adapted()
    save_lora(model, tmp_path)
    remove_lora(model)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(SparsebitError, match=f"adapters with the peft option '{key}' are not supported"):
        load_lora(model, tmp_path)
    assert not any(lora_layers(model.model))


def test_adapters_without_their_config_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    model = adapted()
    monkeypatch.setattr(files, "write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        save_lora(model, tmp_path / "adapter")
    remove_lora(model)
    with pytest.raises(SparsebitError, match="the folder contains no adapters"):
        load_lora(model, tmp_path / "adapter")


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
@torch.no_grad()
def test_peft_loads_them_and_we_load_those_of_peft(tmp_path: Path) -> None:
    import peft

    model, ids = adapted(), tokens(12)[None]
    wanted = model(ids).logits
    save_lora(model, tmp_path / "ours")
    remove_lora(model)
    base = sharp("llama")  # peft adapts float layers, so its base gets the numbers of the grid
    for name, held in model.weights.items():
        base.get_parameter(name).copy_(held.numbers())
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "ours")
    assert torch.allclose(loaded(ids).logits, wanted, atol=1e-4)
    loaded.save_pretrained(tmp_path / "theirs")
    load_lora(model, tmp_path / "theirs")
    assert torch.allclose(model(ids).logits, wanted, atol=1e-6)
