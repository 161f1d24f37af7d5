"""A GPT-2 with 8-bit weights and activations: perplexity before and after.

python gpt_perplexity.py --model folder-of-a-GPT-2 --data text.txt
Without --model a small GPT-2 over bytes is trained on the text for a moment.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from sparsebit import QuantModel


def small_gpt(rows: Tensor, steps: int) -> nn.Module:
    """Two layers over bytes, trained on some rows of the text."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=rows.shape[1], n_embd=64, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = rows[torch.randint(len(rows), (8,), generator=torch.Generator().manual_seed(step))]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


class Logits(nn.Module):
    """The model without its cache: token ids to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """[N, length] to [N, length, vocabulary]."""
        return self.model(input_ids=input_ids, use_cache=False).logits


@torch.no_grad()
def perplexity(model: nn.Module, rows: Tensor) -> float:
    """Over windows that do not overlap."""
    # transformers treats a lone row in another way.
    batches = [batch for batch in rows.split(4) if len(batch) == 4]
    losses = [F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()).item() for x in batches]
    return math.exp(sum(losses) / len(losses))


def main(words: list[str] | None = None) -> dict[str, float]:
    """Calibrate on the first rows, measure on the others; returns both perplexities."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--data", type=Path, default=Path(os.environ.get("SPARSEBIT_DATA", ".")) / "wikitext2_valid.txt"
    )
    options.add_argument("--model", help="folder that save_pretrained wrote")
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--rows", type=int, default=64, help="windows to measure on")
    options.add_argument("--steps", type=int, default=300, help="of training, without --model")
    options = options.parse_args(words)

    text = options.data.read_text(encoding="utf-8")
    if options.model:
        ids = torch.tensor(AutoTokenizer.from_pretrained(options.model)(text)["input_ids"])
    else:
        ids = torch.tensor(list(text.encode()))
    rows = ids[: len(ids) // options.length * options.length].view(-1, options.length)
    test, training = rows[: options.rows], rows[options.rows :]
    float_model = (
        AutoModelForCausalLM.from_pretrained(options.model)
        if options.model
        else small_gpt(training, options.steps)
    )
    model = Logits(float_model.eval())

    config = {
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 8}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 8}, "OBSERVER": {"TYPE": "mse"}},
        "SCHEDULE": {"RECOVERY": ["smoothquant"]},
    }
    qmodel = QuantModel(model, config, example_inputs=(training[:2],))
    qmodel.calibrate(list(training[:16].split(4)))
    results = {"float": perplexity(model, test), "int8": perplexity(qmodel, test)}
    for name, value in results.items():
        print(f"{name:6} perplexity {value:.3f}")
    return results


if __name__ == "__main__":
    main()
