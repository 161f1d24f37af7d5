"""Weights of a model, one block at a time: from a module that stays as it is, or from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sparsebit.errors import ArtifactError, SparsebitError
from sparsebit.llm.folders.source import (
    LARGE,
    LeaveLargeEmpty,
    WeightSource,
    load_module,
    stored_dtype,
    tensor_files,
)
from tests.llm.models import DECODERS


def test_blocks_get_weights_of_their_own() -> None:
    model = DECODERS["llama"]()
    source = WeightSource.open(model)
    block = source.fill(source.blocks[1])
    weight = block.get_parameter("mlp.up_proj.weight")
    original = model.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert torch.equal(weight, original) and weight.data_ptr() != original.data_ptr()


def test_a_folder_is_read_when_a_block_is_asked_for(tmp_path: Path) -> None:
    model = DECODERS["llama"]()
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    source = WeightSource.open(tmp_path)
    block = source.fill(source.blocks[2])
    wanted = model.get_parameter("model.layers.2.mlp.down_proj.weight")
    assert torch.equal(block.get_parameter("mlp.down_proj.weight"), wanted)
    assert torch.equal(load_module(tmp_path).get_parameter("model.layers.2.mlp.down_proj.weight"), wanted)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparsebitError, match="there is no folder"):
        tensor_files(tmp_path / "gone")
    with pytest.raises(SparsebitError, match="holds no"):
        tensor_files(tmp_path)
    DECODERS["llama"]().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for read in (WeightSource.open, load_module):
        with pytest.raises(SparsebitError, match=r"has no tensor 'model.norm.weight'"):
            read(tmp_path)


@pytest.mark.parametrize("positions", [64, LARGE // 64])
def test_tables_that_are_never_saved_are_computed(positions: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    widths = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "max_position_embeddings": positions}
    tokens = {"vocab_size": 9, "pad_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2}
    model = transformers.MarianMTModel(transformers.MarianConfig(**widths, **layers, **tokens))
    model.save_pretrained(tmp_path)
    name = "model.decoder.embed_positions.weight"
    for read in (lambda: WeightSource.open(tmp_path).model, lambda: load_module(tmp_path)):
        assert torch.equal(read().get_parameter(name), model.get_parameter(name))


def test_large_tensors_take_no_memory() -> None:
    with LeaveLargeEmpty(3):
        assert torch.empty(LARGE).is_meta and not torch.empty(LARGE - 1).is_meta
        assert torch.zeros(2, LARGE).is_meta and not torch.arange(LARGE).is_meta
        # Layers pass device=None on, which is no choice of a device.
        assert nn.Linear(LARGE, 1).weight.is_meta and nn.Embedding(LARGE, 1).weight.is_meta


def test_a_folder_is_not_in_memory_before_its_blocks_are_asked_for(tmp_path: Path) -> None:
    """Also of a block that was read, no tensor keeps the mapping of the whole file."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 2048, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    source = WeightSource.open(tmp_path)
    first, second = (source.model.get_submodule(name) for name in source.blocks[:2])
    assert all(p.is_meta for p in first.parameters() if p.numel() >= LARGE)
    assert sum(p.is_meta for p in first.parameters()) == 3
    source.fill(source.blocks[0])
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in first.parameters())
    assert sum(p.is_meta for p in second.parameters()) == 3


def test_a_config_for_a_larger_model_than_the_files_hold_is_refused_at_once(tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value, message in (
        ("num_hidden_layers", 2**31, "larger model than the files hold"),
        ("hidden_act", "unheard of", "cannot build the model of this folder"),
        ("model_type", "unheard of", "transformers cannot read the config"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        for read in (WeightSource.open, load_module):
            with pytest.raises(ArtifactError, match=message):
                read(tmp_path)
    with LeaveLargeEmpty(3), pytest.raises(ArtifactError, match="too long"):
        torch.arange(2**31)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[None], "has another shape in the folder"),
        (lambda x: x.long(), "has another type"),
        (lambda x: x * float("nan"), "holds NaN or infinite values"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = change(tensors["model.norm.weight"])
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=f"'model.norm.weight' {message}"):
        WeightSource.open(tmp_path)


def test_a_file_of_weights_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ArtifactError, match="a weights file cannot be read"):
        WeightSource.open(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_a_module_with_numbers_that_are_not_finite_is_refused(name: str, bad: float) -> None:
    model = DECODERS["llama"]()
    with torch.no_grad():
        model.get_parameter(name).view(-1)[3] = bad
    with pytest.raises(SparsebitError, match=f"'{name}' of the model holds NaN or infinite values"):
        WeightSource.open(model)


def test_a_module_without_numbers_is_refused() -> None:
    with pytest.raises(SparsebitError, match=r"has a shape but no values[\s\S]*load the model's weights"):
        WeightSource.open(DECODERS["llama"]().to("meta"))


def test_a_folder_that_transformers_cannot_load_is_refused(tmp_path: Path) -> None:
    DECODERS["llama"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "unheard of"}))
    with pytest.raises(ArtifactError, match=r"transformers cannot build the model of this folder"):
        load_module(tmp_path)


@pytest.mark.parametrize("file", ["../model.safetensors", "/model.safetensors", "sub/model.safetensors"])
def test_an_index_that_leaves_the_folder_is_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": file}}))
    with pytest.raises(ArtifactError, match="names a file outside the folder"):
        tensor_files(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {"w": 3}}', "[" * 100_000])
def test_an_index_that_is_none_is_our_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"index\.json"):
        tensor_files(tmp_path)


def test_the_model_in_a_wrapper_is_taken_and_adapters_are_refused() -> None:
    model = DECODERS["llama"]()
    for wrapped in (nn.DataParallel(model), torch.compile(model)):
        assert type(WeightSource.open(wrapped).model) is type(model)  # type: ignore[arg-type]
    model.merge_and_unload = lambda: model  # as of peft's models
    with pytest.raises(SparsebitError, match=r"contains adapters(.|\n)*model.merge_and_unload\(\)"):
        WeightSource.open(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_of_the_weights_in_a_folder(dtype: torch.dtype, tmp_path: Path) -> None:
    DECODERS["llama"]().to(dtype).save_pretrained(tmp_path)
    assert stored_dtype(tmp_path) == dtype
    assert next(load_module(tmp_path).parameters()).dtype == torch.float32


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "falcon"])
def test_everything_in_a_folder_goes_to_the_device(tmp_path: Path, name: str) -> None:
    DECODERS[name]().save_pretrained(tmp_path)
    source = WeightSource.open(tmp_path, "meta")  # stands for a GPU
    assert source.device.type == "meta"
    blocks = [source.fill(block) for block in source.blocks]
    for part in (source.model, *blocks):
        assert {one.device.type for one in (*part.parameters(), *part.buffers())} == {"meta"}
