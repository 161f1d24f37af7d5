"""Recurrent layers, and the packing of sequences around them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.utils import rnn

from sparsebit.graph.ops.estimate import count_by_running
from sparsebit.graph.ops.spec import OpCall, OpSpec, shape_of
from sparsebit.graph.ops.spellings import family, present


def recurrent_macs(call: OpCall) -> int:
    """Every step of every sequence uses each matrix once: gates by input, gates by state, projection."""
    if call.module is not None:
        shapes = [tuple(parameter.shape) for parameter in call.module.parameters()]
    else:
        given = call.arguments["params"]
        shapes = [shape_of(call.owner, item) for item in given] if isinstance(given, (tuple, list)) else []
    return math.prod(call.shape("input")[:-1]) * sum(math.prod(shape) for shape in shapes if len(shape) == 2)


_LAYER = (
    "input, hx=None, params=(), has_biases=True, num_layers=1, dropout=0.0, training=False,"
    " bidirectional=False, batch_first=False, *, input_size=None, hidden_size=None, proj_size=0,"
    " nonlinearity='tanh'"
)
_FUNCTION = "input, hx, params, has_biases, num_layers, dropout, training, bidirectional, batch_first"
_CELL = "input, hx=None, weight_ih=None, weight_hh=None, bias_ih=None, bias_hh=None, nonlinearity='tanh'"
_PACK, _UNPACK = present(torch, "_pack_padded_sequence"), present(torch, "_pad_packed_sequence")
_RELU = {
    target: {"nonlinearity": "relu"}
    for target in (*present(torch, "rnn_relu", "rnn_relu_cell"), "aten::rnn_relu", "aten::rnn_relu_cell")
}
_recurrent = family("rnn", implied=_RELU, activations=("input", "hx"), channel_axis=-1)
_packing = family("rnn", activations=("tensors",), aliases={"sequences": "tensors"})


def _layer(name: str, module: type[nn.Module], *functions: str) -> OpSpec:
    builtin = present(torch, *functions)
    return _recurrent(
        name,
        _LAYER,
        only=(module, *builtin, *(f"aten::{function}" for function in functions)),
        orders=dict.fromkeys(builtin, _FUNCTION),
        aliases={"train": "training", "data": "input"},
        attributes={"has_biases": "bias", "params": "all_weights"},
        channels="recurrent",
        several=True,
        random=True,
        macs=recurrent_macs,
    )


def _cell(name: str, module: type[nn.Module], *functions: str) -> OpSpec:
    return _recurrent(
        name,
        _CELL,
        only=(module, *present(torch, *functions), *(f"aten::{function}" for function in functions)),
        aliases={"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"},
        weight="weight_ih",
        bias="bias_ih",
        channels="cell",
        macs=count_by_running,
    )


OPS = (
    _layer("rnn", nn.RNN, "rnn_tanh", "rnn_relu"),
    _layer("lstm", nn.LSTM, "lstm"),
    _layer("gru", nn.GRU, "gru"),
    _cell("rnn_cell", nn.RNNCell, "rnn_tanh_cell", "rnn_relu_cell"),
    _cell("lstm_cell", nn.LSTMCell, "lstm_cell"),
    _cell("gru_cell", nn.GRUCell, "gru_cell"),
    _packing(
        "pack_padded_sequence",
        "input, lengths, batch_first=False, enforce_sorted=True",
        only=(rnn.pack_padded_sequence, *_PACK, "aten::_pack_padded_sequence"),
        aliases={},
        activations=("input",),
        channels="repack",
    ),
    _packing("pack_sequence", "tensors, enforce_sorted=True", only=(rnn.pack_sequence,)),
    _packing(
        "pad_packed_sequence",
        "input, batch_first=False, padding_value=0.0, total_length=None",
        only=(rnn.pad_packed_sequence, *_UNPACK, "aten::_pad_packed_sequence"),
        orders=dict.fromkeys(_UNPACK, "input, batch_sizes, batch_first, padding_value, total_length=-1"),
        aliases={"sequence": "input", "data": "input"},
        activations=("input",),
        channels="repack",
    ),
    _packing(
        "pad_sequence",
        "tensors, batch_first=False, padding_value=0.0, padding_side='right'",
        only=(rnn.pad_sequence, "aten::pad_sequence", *present(torch._C._nn, "pad_sequence")),
    ),
    _packing(
        "packed_sequence",
        "input, batch_sizes=None, sorted_indices=None, unsorted_indices=None",
        only=(rnn.PackedSequence, *present(rnn, "_packed_sequence_init")),
        aliases={"data": "input"},
        activations=("input",),
        channels="packed_sequence",
        view=True,
    ),
)
