"""Recurrent layers, and the packing of sequences around them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.utils import rnn

from sparsebit.graph.ops.spec import OpCall, OpSpec, shape_of
from sparsebit.graph.ops.spellings import present


def recurrent_macs(call: OpCall) -> int:
    """Every step of every sequence uses each matrix once: gates by input, gates by state, projection."""
    if call.module is not None:
        shapes = [tuple(parameter.shape) for parameter in call.module.parameters()]
    else:
        given = call.arguments["params"]
        shapes = [shape_of(call.owner, item) for item in given] if isinstance(given, (tuple, list)) else []
    return math.prod(call.shape("input")[:-1]) * sum(math.prod(shape) for shape in shapes if len(shape) == 2)


def cell_macs(call: OpCall) -> int:
    """One step: gates by input and gates by state."""
    rows = math.prod(call.shape("input")[:-1])
    return rows * (math.prod(call.shape("weight_ih")) + math.prod(call.shape("weight_hh")))


_LAYER = (
    "input, hx=None, params=(), has_biases=True, num_layers=1, dropout=0.0, training=False,"
    " bidirectional=False, batch_first=False, *, input_size=None, hidden_size=None, proj_size=0,"
    " nonlinearity='tanh'"
)
_FUNCTION = "input, hx, params, has_biases, num_layers, dropout, training, bidirectional, batch_first"
_PACK, _UNPACK = present(torch, "_pack_padded_sequence"), present(torch, "_pad_packed_sequence")
_CELL = "input, hx=None, weight_ih=None, weight_hh=None, bias_ih=None, bias_hh=None, nonlinearity='tanh'"


_RELU = {
    target: {"nonlinearity": "relu"}
    for target in (*present(torch, "rnn_relu", "rnn_relu_cell"), "aten::rnn_relu", "aten::rnn_relu_cell")
}


def _layer(name: str, module: type[nn.Module], *functions: str) -> OpSpec:
    builtin = tuple(target for function in functions for target in present(torch, function))
    return OpSpec(
        name=name,
        targets=(module, *builtin, *(f"aten::{function}" for function in functions)),
        family="rnn",
        signature=_LAYER,
        orders=dict.fromkeys(builtin, _FUNCTION),
        implied=_RELU,
        aliases={"train": "training", "data": "input"},
        attributes={"has_biases": "bias", "params": "all_weights"},
        activations=("input", "hx"),
        channel_axis=-1,
        channels="recurrent",
        several=True,
        random=True,
        macs=recurrent_macs,
    )


def _cell(name: str, module: type[nn.Module], *functions: str) -> OpSpec:
    return OpSpec(
        name=name,
        targets=(
            module,
            *(target for function in functions for target in present(torch, function)),
            *(f"aten::{function}" for function in functions),
        ),
        family="rnn",
        signature=_CELL,
        implied=_RELU,
        aliases={"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"},
        activations=("input", "hx"),
        weight="weight_ih",
        bias="bias_ih",
        channel_axis=-1,
        channels="cell",
        macs=cell_macs,
    )


OPS = (
    _layer("rnn", nn.RNN, "rnn_tanh", "rnn_relu"),
    _layer("lstm", nn.LSTM, "lstm"),
    _layer("gru", nn.GRU, "gru"),
    _cell("rnn_cell", nn.RNNCell, "rnn_tanh_cell", "rnn_relu_cell"),
    _cell("lstm_cell", nn.LSTMCell, "lstm_cell"),
    _cell("gru_cell", nn.GRUCell, "gru_cell"),
    OpSpec(
        name="pack_padded_sequence",
        targets=(rnn.pack_padded_sequence, *_PACK, "aten::_pack_padded_sequence"),
        family="rnn",
        signature="input, lengths, batch_first=False, enforce_sorted=True",
        channels="repack",
    ),
    OpSpec(
        name="pack_sequence",
        targets=(rnn.pack_sequence,),
        family="rnn",
        signature="tensors, enforce_sorted=True",
        aliases={"sequences": "tensors"},
        activations=("tensors",),
    ),
    OpSpec(
        name="pad_packed_sequence",
        targets=(rnn.pad_packed_sequence, *_UNPACK, "aten::_pad_packed_sequence"),
        family="rnn",
        signature="input, batch_first=False, padding_value=0.0, total_length=None",
        orders=dict.fromkeys(_UNPACK, "input, batch_sizes, batch_first, padding_value, total_length=-1"),
        aliases={"sequence": "input", "data": "input"},
        channels="repack",
    ),
    OpSpec(
        name="pad_sequence",
        targets=(rnn.pad_sequence, "aten::pad_sequence", *present(torch._C._nn, "pad_sequence")),
        family="rnn",
        signature="tensors, batch_first=False, padding_value=0.0, padding_side='right'",
        aliases={"sequences": "tensors"},
        activations=("tensors",),
    ),
    OpSpec(
        name="packed_sequence",
        targets=(rnn.PackedSequence, *present(rnn, "_packed_sequence_init")),
        family="rnn",
        signature="input, batch_sizes=None, sorted_indices=None, unsorted_indices=None",
        aliases={"data": "input"},
        channels="packed_sequence",
        view=True,
    ),
)
