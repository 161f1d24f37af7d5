"""Names and rows of matrices in checkpoints: those of the files that transformers itself saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.checkpoint_names import as_stored, joined_floats, stored_layers
from sparsebit.llm.formats.format import float_state
from tests.llm.models import DECODERS, MORE_DECODERS

MODELS = DECODERS | MORE_DECODERS
RTN = {"W": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn"}


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_files_hold_what_save_pretrained_writes(tmp_path: Path, name: str) -> None:
    small = llm.quantize(MODELS[name](), None, RTN, progress=False)
    # Experts are listed in the order in which tokens reached them.
    small.weights = dict(reversed(small.weights.items()))
    rounded = MODELS[name]()
    for key, held in small.weights.items():
        parameter, _, expert = key.removesuffix("]").partition("[")
        place = rounded.get_parameter(parameter).data
        (place[int(expert)] if expert else place).copy_(held.numbers())
    rounded.save_pretrained(tmp_path)
    wanted = load_file(tmp_path / "model.safetensors")
    packed = {f"{layer.name}.weight": layer.held.numbers() for layer in stored_layers(small)}
    found = packed | as_stored(small.model, float_state(small.model))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], one) for key, one in wanted.items())


@pytest.mark.parametrize("format_name", ["compressed-tensors", "gptq"])
def test_a_family_whose_checkpoints_keep_the_stack_is_refused(format_name: str) -> None:
    small = llm.quantize(MORE_DECODERS["granitemoe"](), None, RTN, progress=False)
    with pytest.raises(
        SparsebitError, match=r"(?s)experts.*store all experts in one tensor.*'\*.experts' in IGNORE"
    ):
        small.export("never", format_name)


@pytest.fixture
def joining() -> nn.Module:
    """A family whose checkpoints hold queries, keys and values in one tensor."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.AutoConfig.for_model("nomic_bert", vocab_size=96, **sizes)
    made: nn.Module = transformers.AutoModel.from_config(config)
    return made


@pytest.mark.parametrize("format_name", ["compressed-tensors", "gptq"])
def test_a_layer_that_checkpoints_fuse_with_others_is_refused(joining: nn.Module, format_name: str) -> None:
    small = llm.quantize(joining, None, RTN, progress=False)
    with pytest.raises(
        SparsebitError,
        match=r"(?s)q_proj' exactly.*store it and other layers in one tensor.*'\*.q_proj' in IGNORE",
    ):
        small.export("never", format_name)


def test_float_layers_that_checkpoints_fuse_are_found(joining: nn.Module) -> None:
    small = llm.quantize(joining, None, {**RTN, "IGNORE": ["*.[qkv]_proj"]}, progress=False)
    found = [name for name in joined_floats(small) if "self_attn" in name]
    assert sorted(found) == [
        f"layers.{index}.self_attn.{part}_proj.weight" for index in (0, 1) for part in "kqv"
    ]
    assert joined_floats(llm.quantize(DECODERS["llama"](), None, RTN, progress=False)) == []
