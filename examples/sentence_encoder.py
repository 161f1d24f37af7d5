"""A BERT sentence encoder in int8 on STS-B: rank correlation with people's scores before and after.

python sentence_encoder.py --model folder-of-a-BERT --data stsb_dev.csv
Without --model a small random encoder over the words of the data is used, which shows the steps and nothing else.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from sparsebit import QuantModel

Call = dict[str, Tensor]


class Encoder(nn.Module):
    """The mean of the last hidden states over tokens that are not padding."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[N, length] to [N, hidden]."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1)


def small_encoder(sentences: list[str]) -> tuple[nn.Module, Any]:
    """A random BERT of two layers, and a function that numbers the words of the data."""
    words = sorted({word for sentence in sentences for word in sentence.lower().split()})
    number = {word: index + 1 for index, word in enumerate(words)}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(words) + 1, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128)  # fmt: skip

    def tokenize(batch: list[str]) -> Call:
        rows = [[number[word] for word in sentence.lower().split()][:64] for sentence in batch]
        length = max(map(len, rows))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    return Encoder(BertModel(config, add_pooling_layer=False)).eval(), tokenize


def pretrained(folder: str) -> tuple[nn.Module, Any]:
    """The encoder of a folder that ``save_pretrained`` wrote, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def tokenize(batch: list[str]) -> Call:
        made = tokenizer(batch, padding=True, truncation=True, max_length=256, return_tensors="pt")
        return {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"]}

    return Encoder(AutoModel.from_pretrained(folder)).eval(), tokenize


def spearman(a: Tensor, b: Tensor) -> float:
    """Correlation of the ranks."""
    ranks = [values.argsort().argsort().double() for values in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


@torch.no_grad()
def correlation(encoder: nn.Module, left: list[Call], right: list[Call], scores: Tensor) -> float:
    """Of the cosines of the pairs with the scores that people gave."""
    cosines = [F.cosine_similarity(encoder(**a), encoder(**b)) for a, b in zip(left, right, strict=True)]
    return spearman(torch.cat(cosines), scores)


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize with recovery for transformers; returns both correlations."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--data", type=Path, default=Path(os.environ.get("SPARSEBIT_DATA", ".")) / "stsb_dev.csv"
    )
    options.add_argument("--model", help="folder that save_pretrained wrote")
    options.add_argument("--limit", type=int)
    options = options.parse_args(words)

    with open(options.data, newline="", encoding="utf-8") as file:
        pairs = [(a, b, float(score)) for a, b, score in list(csv.reader(file))[: options.limit]]
    sentences = [sentence for pair in pairs for sentence in pair[:2]]
    encoder, tokenize = pretrained(options.model) if options.model else small_encoder(sentences)
    chunks = [pairs[start : start + 32] for start in range(0, len(pairs), 32)]
    left = [tokenize([pair[0] for pair in chunk]) for chunk in chunks]
    right = [tokenize([pair[1] for pair in chunk]) for chunk in chunks]
    scores = torch.tensor([pair[2] for pair in pairs])

    qmodel = QuantModel(encoder, "int8_onnxruntime", example_kwargs=left[0])
    qmodel.calibrate(left[:4])
    results = {
        name: correlation(m, left, right, scores) for name, m in (("float", encoder), ("int8", qmodel))
    }
    for name, value in results.items():
        print(f"{name:6} Spearman {value:.4f}")
    return results


if __name__ == "__main__":
    main()
