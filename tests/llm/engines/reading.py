"""What an engine reads from a file that was written for it, beside the model in torch."""

from __future__ import annotations

from pathlib import Path

import torch

from sparsebit.llm.engines.engine import Engine, Opened
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import tokenizer


def require_same_reading(engine: Engine, format: str, folder: Path) -> Opened:
    """Every weight equal bit for bit, and next-token distributions as close as the engine says it is."""
    model = quantized()
    model.tokenizer = tokenizer()
    place = folder / "out"
    model.export(place, format)
    opened = engine.open(place)
    ids = torch.arange(3, 11)
    found = opened.log_probabilities(ids)
    with torch.no_grad():
        wanted = model.model(ids[None]).logits[0, -len(found) :].double().log_softmax(-1)
    for name, held in model.weights.items():
        assert torch.equal(opened.weight(name), held.numbers().float()), name
    assert float((wanted.exp() * (wanted - found)).sum(-1).mean()) <= engine.tolerance
    return opened
