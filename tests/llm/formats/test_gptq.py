"""GPTQ files, read back by the rule that their readers follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.gptqmodel import GPTQMODEL
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import sharp


def numbers(tensors: dict[str, torch.Tensor], layer: str, bits: int) -> torch.Tensor:
    """(value - (stored zero point + 1)) * scale, for widths that divide 32."""
    shifts = torch.arange(0, 32, bits)
    values = (tensors[f"{layer}.qweight"][:, None].long() >> shifts[:, None]) % 2**bits
    zeros = (tensors[f"{layer}.qzeros"][..., None].long() >> shifts) % 2**bits
    group = tensors[f"{layer}.g_idx"].long()
    scale = tensors[f"{layer}.scales"].float()
    return ((values.flatten(0, 1) - (zeros.flatten(1) + 1)[group]) * scale[group]).T


@pytest.mark.parametrize(("bits", "size"), [(4, 32), (2, 32), (4, 64), (8, 0)])
def test_readers_get_the_weights(tmp_path: Path, bits: int, size: int) -> None:
    model = quantized(BIT=bits, GROUP_SIZE=size)
    report = model.export(tmp_path / "out", "gptq")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for name, held in model.weights.items():
        assert torch.equal(numbers(tensors, name.removesuffix(".weight"), bits), held.numbers()), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"], config["sym"]) == (bits, size or -1, True)
    if missing := missing_modules(GPTQMODEL):
        assert report.ok and not report.proven
        assert f"not checked in an engine: GPTQModel needs {', '.join(missing)}, not installed" in str(report)


@pytest.mark.parametrize(
    ("ignored", "names"),
    [
        ("*.self_attn.*", ["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj"]),
        ("model.layers.0.*", [f"model.layers.{i}.mlp.{part}_proj" for i in (1, 2) for part in ("down",)]),
    ],
)
def test_readers_are_told_where_packed_layers_are(ignored: str, names: list[str], tmp_path: Path) -> None:
    config = {"METHOD": "rtn", "IGNORE": [ignored]}
    llm.quantize(sharp("llama"), None, config, progress=False).export(tmp_path / "out", "gptq")
    found = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert found["block_name_to_quantize"] == "model.layers"
    (listed,) = found["modules_in_block_to_quantize"]
    assert set(names) <= set(listed) and (len(listed) == len(names) or len(listed) == 2 * 7)


def test_three_bits_run_across_words(tmp_path: Path) -> None:
    model = quantized(BIT=3)
    model.export(tmp_path / "out", "gptq")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    column = tensors[f"{name}.qweight"][:, 5].tolist()
    stream = sum((word % 2**32) << (32 * place) for place, word in enumerate(column))
    held = model.weights[f"{name}.weight"]
    values = [(stream >> (3 * place)) % 8 - 4 for place in range(held.shape[1])]
    assert values == held.codes()[5].tolist()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"SCHEME": "affine"}, "only symmetric integers"),
        ({"SCALE_DTYPE": "float32"}, "its scales are fp16"),
        ({"SPECIFIC": {"*.down_proj": {"BIT": 8}}}, "the same width and group size"),
    ],
)
def test_what_it_cannot_hold_is_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(SparsebitError, match=reason):
        quantized(**settings).export("never", "gptq")
