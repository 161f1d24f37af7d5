"""Folders whose files name or cut their tensors in another way than the model does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sparsebit.errors import ArtifactError
from sparsebit.llm.folders import source as source_module
from sparsebit.llm.folders.source import WeightSource, load_module
from tests.llm.models import DECODERS


def encoder() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    made: nn.Module = transformers.BertModel(config).eval()
    return made


@pytest.mark.parametrize("name", ["gpt_neox", "mixtral", "opt", "bert"])
def test_every_block_gets_the_weights_that_transformers_would_load(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed heads, one stored matrix for each expert, and a class that is not a decoder."""
    monkeypatch.setattr(source_module, "LARGE", 256)
    model = encoder() if name == "bert" else DECODERS[name]()
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    source = WeightSource.open(tmp_path)
    assert type(source.model) is type(model) is type(load_module(tmp_path))
    for block in source.blocks:
        source.fill(block)
    wanted = model.state_dict()
    for key, tensor in source.model.state_dict().items():
        assert torch.equal(tensor, wanted[key]), key


def test_pieces_that_do_not_fit_together_are_an_error_of_ours(tmp_path: Path) -> None:
    DECODERS["mixtral"]().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    broken = next(key for key in tensors if "experts.1.w1" in key)
    tensors[broken] = tensors[broken][:, :3].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = WeightSource.open(tmp_path)
    with pytest.raises(
        ArtifactError, match=r"transformers cannot build 'model.layers.0.mlp.experts.gate_up_proj'"
    ):
        source.fill(source.blocks[0])
