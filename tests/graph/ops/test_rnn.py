"""Recurrent layers: their work, and what a function or module implies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.graph.ops.sampling import one_node, parameter, real, sample


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_every_step_uses_each_matrix_once(kind: Any, gates: int) -> None:
    call = one_node(sample(kind(4, 6, batch_first=True), real(2, 5, 4))).call
    assert call.macs == 2 * 5 * gates * (6 * 4 + 6 * 6) and call.spec.several


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNNCell, 1), (nn.GRUCell, 3), (nn.LSTMCell, 4)])
def test_a_cell_is_one_step(kind: Any, gates: int) -> None:
    call = one_node(sample(kind(4, 6), real(2, 4))).call
    assert call.macs == 2 * gates * (6 * 4 + 6 * 6) and call.weight_name == "layer.weight_ih"


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_a_function_says_its_nonlinearity(name: str) -> None:
    tensors = (real(2, 4), real(2, 6), parameter(6, 4), parameter(6, 6))
    call = one_node(sample(getattr(torch, f"rnn_{name}_cell"), *tensors)).call
    assert call.spec.name == "rnn_cell" and call.arguments["nonlinearity"] == name
