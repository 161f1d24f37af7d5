"""The round trip through transformers: packed layers stay packed, ties stay ties, damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.llm.packed.stack import PackedStack
from tests.llm.models import DECODERS, sharp, tokens

CONFIG = {"W": {"BIT": 4, "SCHEME": "affine"}, "HEAD": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn"}


def small(*, tied: bool = True) -> llm.LanguageModel:
    model = sharp("llama")
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
    return llm.quantize(model, None, CONFIG, progress=False)


@pytest.mark.parametrize("tied", [True, False])
def test_from_pretrained_gives_the_packed_model(tmp_path: Path, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    model = small(tied=tied)
    model.save_pretrained(tmp_path / "out")
    model.save_pretrained(tmp_path / "again")  # the model is as it was
    llm.register_transformers()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ids = tokens(12)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert isinstance(loaded.lm_head, PackedLinear) and loaded.lm_head.scale.dtype == torch.float16
    same = loaded.lm_head.packed.data_ptr() == loaded.get_input_embeddings().packed.data_ptr()
    assert same == tied
    generated = loaded.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert generated.shape == (1, 15)
    loaded.save_pretrained(tmp_path / "third")
    half = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "third", dtype=torch.bfloat16)
    assert half(ids).logits.dtype == half.get_input_embeddings()(ids).dtype == torch.bfloat16
    held = model.weights["model.layers.0.mlp.up_proj.weight"]
    assert torch.equal(half.model.layers[0].mlp.up_proj.held.numbers(torch.float32), held.numbers())


def test_a_folder_of_quantized_weights_is_not_quantized_again(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path / "out")
    with pytest.raises(SparsebitError, match="weights of this folder are quantized already") as caught:
        llm.quantize(tmp_path / "out", None, "w8")
    assert "quant_method 'sparsebit'" in (caught.value.got or "")


def test_a_save_that_is_stopped_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()

    def stop(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "save_tokenizer", stop)
    with pytest.raises(KeyboardInterrupt):
        model.save_pretrained(tmp_path / "out")
    assert not list(tmp_path.iterdir())
    assert not hasattr(model.model.config, "quantization_config")
    monkeypatch.undo()
    model.save_pretrained(tmp_path / "out")
    with pytest.raises(SparsebitError, match="exists and contains files"):
        model.save_pretrained(tmp_path / "out")


def test_damage_is_found(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.scale"][3] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(SparsebitError, match="up_proj' is damaged: scale does not fit"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["layers"]["model.layers.0.mlp.up_proj"]["type"] = "int99"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SparsebitError):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_stacked_experts_stay_packed(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    data = {"W": {"BIT": 4}, "METHOD": "gptq", "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16}}
    model = llm.quantize(DECODERS["mixtral"](), tokens(), data, progress=False)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    stack = loaded.get_submodule("model.layers.0.mlp.experts.gate_up_proj")
    assert isinstance(stack, PackedStack) and not any(p.dim() == 3 for p in loaded.parameters())
    ids = tokens(8)[None]
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    generated = loaded.generate(ids, max_new_tokens=2, do_sample=False, eos_token_id=None)
    assert generated.shape == (1, 10)
