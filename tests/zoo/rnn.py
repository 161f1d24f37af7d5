"""Recurrent nets, most of them over ``nn.LSTM`` and ``nn.GRU``."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pack_padded_sequence

from .entry import Call, floats, integers, zoo_entry
from .nets.recurrent import (
    AttentionSeq2Seq,
    CellLoop,
    GRUTagger,
    LSTMClassifier,
    PackedLSTM,
    PackedOutput,
    StackedBiLSTM,
)


def _tokens(batch: int, length: int = 9) -> Call:
    return (integers(40, batch, length),), {}


def _steps(batch: int, length: int = 7) -> Call:
    return (floats(length, batch, 12),), {}


def _steps_and_states(batch: int) -> Call:
    states = (floats(4, batch, 10, seed=1), floats(4, batch, 10, seed=2))
    return (floats(7, batch, 12), states), {}


def _padded(batch: int, length: int = 8) -> Call:
    lengths = torch.tensor([max(length - 2 * row, 1) for row in range(batch)]).flip(0)
    return (floats(batch, length, 8), lengths), {}


def _packed(batch: int) -> Call:
    (x, lengths), _ = _padded(batch)
    return (pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False),), {}


def _source_and_target(batch: int, source: int = 7, target: int = 5) -> Call:
    return (integers(30, batch, source), integers(30, batch, target, seed=1)), {}


ENTRIES = [
    zoo_entry("lstm_classifier", "rnn", LSTMClassifier, _tokens, other_sizes=lambda: [_tokens(2, 5)]),
    zoo_entry("gru_tagger", "rnn", GRUTagger, _tokens, other_sizes=lambda: [_tokens(2, 14)]),
    zoo_entry("bilstm_states", "rnn", StackedBiLSTM, _steps, other_sizes=lambda: [_steps(2, 4)]),
    zoo_entry("bilstm_states_given", "rnn", StackedBiLSTM, _steps_and_states),
    zoo_entry("packed_lstm", "rnn", PackedLSTM, _padded, other_sizes=lambda: [_padded(3, 11)]),
    zoo_entry(
        "packed_in_and_out", "rnn", PackedOutput, _packed, notes="PackedSequence in, PackedSequence out"
    ),
    zoo_entry(
        "lstm_cell_loop",
        "rnn",
        CellLoop,
        lambda batch: ((floats(batch, 5, 8),), {}),
        notes="Python loop over time",
    ),
    zoo_entry(
        "gru_seq2seq",
        "rnn",
        AttentionSeq2Seq,
        _source_and_target,
        other_sizes=lambda: [_source_and_target(2, 4, 6)],
    ),
]
