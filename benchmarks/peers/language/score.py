"""The judge: perplexity, divergence from float and agreement of any set of weights, by one function for all.

Run in our own environment: ``python -m benchmarks.peers.language.score FLOAT_FOLDER TOKENS WEIGHTS MEMORY``, where
WEIGHTS may be the word float. What the float model gives is computed once and kept in MEMORY as hidden states, from
which its logits follow exactly.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.peers.language.protocol import WINDOW
from sparsebit.llm.evaluate.perplexity import Evaluation, evaluate

BATCH = 2


class Recorded(nn.Module):
    """Gives the float model's logits again, window after window, from the hidden states before its head."""

    def __init__(self, hidden: Tensor, head: nn.Module) -> None:
        super().__init__()
        self.hidden, self.head, self.next = hidden, head, 0

    def forward(self, rows: Tensor) -> Tensor:
        """The logits of the windows that come next; they must be asked for in the order of the text."""
        start, self.next = self.next, self.next + len(rows)
        logits: Tensor = self.head(self.hidden[start : self.next])
        return logits


@torch.no_grad()
def record(model: Any, held_out: Tensor, path: Path) -> Tensor:
    """The float model's last hidden states of every window, from the file where they are already."""
    if not path.exists():
        rows = held_out[: len(held_out) // WINDOW * WINDOW].view(-1, WINDOW)
        parts = [model.model(batch).last_hidden_state for batch in rows.split(BATCH)]
        save_file({"hidden": torch.cat(parts)}, path)
    return load_file(path)["hidden"]


def replace_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put a peer's weights in place of the float ones; every name and shape must be known."""
    left = model.load_state_dict(weights, strict=False)
    if left.unexpected_keys:
        raise ValueError(f"the float model has no {', '.join(left.unexpected_keys[:3])}")


def score(folder: Path, tokens: Path, weights: Path | None, memory: Path) -> Evaluation:
    """Of the weights in a file; of the float model itself without one."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    held_out = load_file(tokens)["held_out"]
    head = nn.Linear(1, 1, bias=False)
    head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    hidden = record(model.eval(), held_out, memory)
    reference = Recorded(hidden, head)
    if weights is None:
        model = Recorded(hidden, head)
    else:
        replace_weights(model, load_file(weights))
    return evaluate(model, held_out, reference=reference, length=WINDOW, batch=BATCH)


def main() -> None:
    """Print one line of JSON."""
    folder, tokens, weights, memory = map(Path, sys.argv[1:])
    made = None if weights.name == "float" else weights
    print(json.dumps(asdict(score(folder, tokens, made, memory))))


if __name__ == "__main__":
    main()
