"""Packed language models on a GPU: they generate what the unpacked weights generate, load there, and take adapters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.llm.lora import add_lora, load_lora, remove_lora, save_lora, train_lora
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLinear
from tests.llm.models import DECODERS, sharp, tokens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.gpu

GRIDS: dict[str, dict[str, Any]] = {
    "4 bits": {"BIT": 4, "GROUP_SIZE": 32},
    "4 bits affine": {"BIT": 4, "GROUP_SIZE": 32, "SCHEME": "affine"},
    "3 bits": {"BIT": 3, "GROUP_SIZE": 32},
    "2 bits affine": {"BIT": 2, "GROUP_SIZE": 64, "SCHEME": "affine"},
    "8 bits": {"BIT": 8, "GROUP_SIZE": 0},
}


def make(grid: str, model: nn.Module | None = None) -> llm.LanguageModel:
    """A small Llama with packed weights and a packed head, on the device."""
    config = {"W": GRIDS[grid], "HEAD": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn"}
    floats = sharp("llama") if model is None else model
    made = llm.quantize(floats.to(DEVICE), None, config, progress=False)
    assert {buffer.device.type for buffer in made.model.buffers()} == {DEVICE}
    return made


def unpacked(model: nn.Module) -> nn.Module:
    """The same numbers in ordinary layers."""
    plain = copy.deepcopy(model)
    for name, layer in list(plain.named_modules()):
        above, _, last = name.rpartition(".")
        if isinstance(layer, PackedLinear):
            other: nn.Module = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        elif isinstance(layer, PackedEmbedding):
            other = nn.Embedding(layer.num_embeddings, layer.embedding_dim)
        else:
            continue
        other.weight = nn.Parameter(layer.weight)
        setattr(plain.get_submodule(above), last, other)
    return plain


@pytest.mark.parametrize("grid", GRIDS)
@torch.no_grad()
def test_the_packed_model_generates_what_its_numbers_say(grid: str) -> None:
    packed: Any = make(grid).model
    prompt = tokens(12)[None].to(DEVICE)
    asked = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    found, expected = (one.generate(prompt, **asked) for one in (packed, cast("Any", unpacked(packed))))
    assert torch.equal(found, expected)
    # By the kernels for half precision sums differ in their order: each token is the best one up to that. A model
    # that is less sure of its tokens does not make more of the difference from block to block.
    packed = make(grid, DECODERS["llama"]()).model.bfloat16()
    plain: Any = unpacked(packed)
    found = packed.generate(prompt, **asked)
    logits = plain(found).logits[0, 11:-1].float()
    lost = logits.amax(1) - logits.gather(1, found[0, 12:, None])[:, 0]
    assert float(lost.max()) <= 0.02 * float(logits.abs().max())


@torch.no_grad()
def test_from_pretrained_loads_packed_layers_on_the_device(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = make("4 bits affine")
    model.save_pretrained(tmp_path / "out")
    llm.register_transformers()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    loaded = loaded.to(DEVICE)
    assert isinstance(loaded.model.layers[0].mlp.up_proj, PackedLinear)
    ids = tokens(24)[None].to(DEVICE)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    model.save(tmp_path / "own")
    again = llm.LanguageModel.load(tmp_path / "own").model.to(DEVICE)
    assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_trained_saved_and_loaded_on_the_device(dtype: torch.dtype, tmp_path: Path) -> None:
    model = make("4 bits")
    model.model.to(dtype)
    ids = tokens(2048)
    add_lora(model, rank=4, floats=sharp("llama").to(DEVICE), ids=ids[:128].view(4, 32))
    before = {name: held.bits.clone() for name, held in model.weights.items()}
    losses = train_lora(model, ids, steps=30, rate=3e-2, batch=4, length=32, warmup=2)
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])
    assert all(torch.equal(held.bits, before[name]) for name, held in model.weights.items())
    row = ids[None, :32].to(DEVICE)
    with torch.no_grad():
        expected = model(row).logits
        save_lora(model, tmp_path / "adapter")
        remove_lora(model)
        assert not torch.equal(model(row).logits, expected)
        load_lora(model, tmp_path / "adapter")
        assert torch.equal(model(row).logits, expected)


@pytest.mark.parametrize("name", ["onnxruntime-genai", "openvino"])
def test_a_model_on_the_device_is_exported_and_proven(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name.replace("-", "_"))
    report = make("4 bits").export(tmp_path / "out", name, ids=tokens(12).to(DEVICE))
    assert report.ok, str(report)


def test_a_model_on_the_device_is_quantized_resumed_and_pruned(tmp_path: Path) -> None:
    config = {"W": {"GROUP_SIZE": 32}, "METHOD": "rtn", "CALIBRATION": {"SAMPLES": 2, "LENGTH": 32}}
    model, ids = sharp("llama").to(DEVICE), tokens(512).to(DEVICE)
    made, again = (llm.quantize(model, ids, config, folder=tmp_path, progress=False) for _ in range(2))
    assert all(torch.equal(held.bits, again.weights[name].bits) for name, held in made.weights.items())
    assert torch.equal(made(ids[None, :32]).logits, again(ids[None, :32]).logits)
    small: Any = llm.prune(model, ids, hidden=0.25, blocks=1)
    assert len(small.model.layers) == len(cast("Any", model).model.layers) - 1
    assert small(ids[None, :8]).logits.device.type == DEVICE


def test_a_folder_is_quantized_on_the_device(tmp_path: Path) -> None:
    config = {"METHOD": "gptq", "CALIBRATION": {"SAMPLES": 2, "LENGTH": 32}}
    sharp("llama").save_pretrained(tmp_path)
    made = llm.quantize(tmp_path, tokens(512), config, progress=False)
    assert {one.device.type for one in (*made.model.parameters(), *made.model.buffers())} == {DEVICE}
    assert bool(torch.isfinite(made(tokens(8)[None].to(DEVICE)).logits).all())
