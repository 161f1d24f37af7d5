"""The benchmark of language models: predictions that are kept, and rows that configs can read."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.llm.kept_predictions import KeptPredictions
from benchmarks.llm.run import rows
from sparsebit.config.llm import load_llm_config
from sparsebit.llm.evaluate.perplexity import evaluate


class Counted(nn.Module):
    """A table of logits that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.calls = nn.Embedding(11, 11).requires_grad_(False), 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.table(ids)  # type: ignore[no-any-return]


def test_kept_predictions_stand_in_for_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other, ids = Counted(), Counted(), torch.randint(11, (64,))
    kept = KeptPredictions(model, tmp_path)
    wanted = evaluate(other, ids, reference=model, length=16, batch=2)
    before = model.calls
    found = [evaluate(other, ids, reference=kept, length=16, batch=2) for _ in range(2)]
    assert model.calls == 2 * before and found[0] == found[1]
    assert wanted.divergence is not None and found[0].divergence is not None
    assert abs(found[0].divergence - wanted.divergence) < 1e-3 and found[0].agreement == wanted.agreement


def test_every_row_is_a_config() -> None:
    for name, config in rows().items():
        assert load_llm_config(config).METHOD, name
