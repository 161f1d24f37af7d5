"""Statistics of what weights are multiplied with, from running the block."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.measure import measure_inputs, stored
from sparsebit.llm.blocks.stages import find_stages
from sparsebit.llm.weights.uses import Matrix


def test_they_are_those_of_the_inputs_of_each_layer() -> None:
    block = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).requires_grad_(False)
    batches = [torch.randn(2, 5, 6) for _ in range(3)]
    runs = BlockRuns(block, [BlockCall((None,), {}, 0)] * 3, batches)
    parameters = {name: one for name, one in block.named_parameters() if one.dim() == 2}
    inner = torch.cat([block[:2](x).reshape(-1, 8) for x in batches])
    floats = [{Matrix("2.weight"): 2 * block[:2](x)} for x in batches]
    second = find_stages(runs, parameters)[1]
    found = measure_inputs(runs, parameters, second, floats)[Matrix("2.weight")]
    assert found.tokens == 30 and torch.allclose(found.mean_gram(), inner.T @ inner / 30, atol=1e-5)
    assert found.shift is not None and torch.allclose(found.shift, inner.T @ inner, atol=0.1)


def test_a_matrix_is_a_view_of_its_parameter() -> None:
    stack = torch.randn(2, 3, 4)
    view = stored({"w": stack}, Matrix("w", 1, transposed=True))
    assert view.shape == (4, 3) and view.data_ptr() == stack[1].data_ptr()


def test_inputs_that_are_no_numbers_are_an_error_that_names_the_weight() -> None:
    block = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)).requires_grad_(False)
    block[0].bias[2] = torch.inf
    runs = BlockRuns(block, [BlockCall((None,), {}, 0)], [torch.randn(2, 5, 6)], name="layers.3")
    parameters = {name: one for name, one in block.named_parameters() if one.dim() == 2}
    with pytest.raises(SparsebitError, match=r"the inputs of layers\.3\.1\.weight"):
        measure_inputs(runs, parameters, find_stages(runs, parameters)[1], None)
