"""What all formats share: refusals that name layer and setting, tensors that stay float, words of 32 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats import FORMATS
from sparsebit.llm.formats.format import by_rows, float_state, require_exact, words
from tests.llm.formats.test_compressed_tensors import quantized


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
