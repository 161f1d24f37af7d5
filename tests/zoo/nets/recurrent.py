"""LSTM, GRU and hand-written recurrent nets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


class LSTMClassifier(nn.Module):
    """Last hidden state of an LSTM into a classifier."""

    def __init__(self, *, vocabulary: int = 40, dim: int = 16, hidden: int = 24, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.fc(hidden[-1])


class GRUTagger(nn.Module):
    """A tag per token from a bidirectional GRU."""

    def __init__(self, *, vocabulary: int = 40, dim: int = 16, hidden: int = 12, tags: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.gru = nn.GRU(dim, hidden, bidirectional=True, batch_first=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.fc = nn.Linear(2 * hidden, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.gru(self.embedding(tokens))
        return self.fc(self.norm(out))


class StackedBiLSTM(nn.Module):
    """Two bidirectional layers, time first, states in and out (zeros when none are given)."""

    def __init__(self, *, dim: int = 12, hidden: int = 10) -> None:
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, bidirectional=True, dropout=0.2)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None:
            zeros = x.new_zeros(4, x.size(1), self.hidden)
            state = (zeros, zeros)
        return self.lstm(x, state)


class PackedLSTM(nn.Module):
    """Sorts out padding with packed sequences, as text classifiers did; lengths are a CPU tensor input."""

    def __init__(self, *, dim: int = 8, hidden: int = 12, classes: int = 3) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.size(1))
        return self.fc(out)


class PackedOutput(nn.Module):
    """Takes and returns a ``PackedSequence``."""

    def __init__(self, *, dim: int = 8, hidden: int = 6) -> None:
        super().__init__()
        self.gru = nn.GRU(dim, hidden)

    def forward(self, packed: PackedSequence) -> tuple[PackedSequence, Tensor]:
        return self.gru(packed)


class CellLoop(nn.Module):
    """An LSTM cell unrolled by a Python loop over time: the length is fixed when a graph is made."""

    def __init__(self, *, dim: int = 8, hidden: int = 12) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(dim, hidden)
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        state = (x.new_zeros(x.size(0), self.hidden), x.new_zeros(x.size(0), self.hidden))
        outputs = []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0])
        return torch.stack(outputs, dim=1)


class AttentionSeq2Seq(nn.Module):
    """GRU encoder, GRU decoder fed with the target, dot-product attention between them."""

    def __init__(self, *, vocabulary: int = 30, dim: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.encoder, self.decoder = nn.GRU(dim, dim, batch_first=True), nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(2 * dim, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.embedding(source))
        decoded, _ = self.decoder(self.embedding(target), state)
        weights = torch.softmax(torch.bmm(decoded, memory.transpose(1, 2)), dim=-1)
        return self.out(torch.cat([decoded, torch.bmm(weights, memory)], dim=-1))
