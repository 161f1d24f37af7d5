"""What all formats share: refusals that name layer and setting, tensors that stay float, words of 32 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats import FORMATS
from sparsebit.llm.formats.format import (
    by_rows,
    float_state,
    kind_of,
    layers_of,
    require_exact,
    words,
)
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import tokenizer

WEIGHTS = (".onnx", ".data", ".bin", ".safetensors")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_groups_in_another_order_are_refused_by_all(name: str) -> None:
    model = quantized()
    key, held = next(iter(model.weights.items()))
    grid = replace(held.grid, order=torch.arange(held.shape[1]).flip(0))
    model.weights[key] = replace(held, grid=grid)
    with pytest.raises(
        SparsebitError, match=f"{name} cannot store .* exactly: its groups reorder input channels"
    ):
        require_exact(name, FORMATS[name](), model)


def test_what_stays_float_and_shapes() -> None:
    model = quantized("qwen2")
    state = float_state(model.model)
    assert not any(key.endswith((".packed", ".scale", ".zero_point")) for key in state)
    assert "model.layers.0.self_attn.q_proj.bias" in state and "model.norm.weight" in state
    scale, point = by_rows(next(iter(model.weights.values())))
    assert scale.shape == point.shape == (64, 2)
    assert words(torch.tensor([[255, 255, 255, 127]], dtype=torch.uint8)).tolist() == [[2**31 - 1]]


def test_a_single_row_of_bytes_becomes_words_whatever_its_stride() -> None:
    column = torch.arange(8, dtype=torch.uint8)[:, None]  # zero points of one group per channel, 8 bits each
    assert column.T.stride(0) == 1
    assert torch.equal(words(column.T), words(column.T.clone().reshape(1, 8)))
    assert words(column.T).tolist() == [[0x03020100, 0x07060504]]


@pytest.mark.parametrize(
    ("name", "family"), [*((name, "llama") for name in sorted(FORMATS)), ("compressed-tensors", "mixtral")]
)
def test_the_size_of_a_weight_is_that_in_the_file(tmp_path: Path, name: str, family: str) -> None:
    format = FORMATS[name]()
    other: dict[str, object] = {"BIT": 2, "GROUP_SIZE": 64}
    if name in ("onnxruntime-genai", "openvino") or (name, family) == ("compressed-tensors", "llama"):
        other |= {"BIT": 4, "SCHEME": "affine"}
    written: list[int] = []
    counted: list[int] = []
    for asked in ({"BIT": 8}, other):
        model = quantized(family, **asked)
        model.tokenizer = tokenizer()
        place = tmp_path / f"{len(written)}{format.extension}"
        if not format.extension:
            place.mkdir()
        format.write(model, place, torch.arange(4))
        files = [place] if place.is_file() else [one for one in place.iterdir() if one.suffix in WEIGHTS]
        written.append(sum(one.stat().st_size for one in files))
        kinds = [kind_of(model.model, layer, held) for layer, held in layers_of(model)]
        counted.append(sum(format.nbytes(kind) for kind in kinds))
    headers = 4096  # names and shapes, whose lengths differ
    assert abs((written[0] - written[1]) - (counted[0] - counted[1])) < headers < abs(counted[0] - counted[1])
