"""The verb that measures, chooses and hands back a config."""

from __future__ import annotations

import json

import pytest
from torch import Tensor, nn

from sparsebit.analysis import (
    mixed_precision,
)
from sparsebit.errors import SparsebitError
from tests.analysis.chain import CONFIG


def test_the_verb_does_all_of_it(chain: nn.Module, images: list[Tensor]) -> None:
    budget = 500.0
    chosen = mixed_precision(
        chain, CONFIG, images, example_inputs=(images[0],), size=budget, bits=(2, 4, 8), progress=False
    )
    assert chosen.size <= budget and all(choice.side == "W" for choice in chosen.sensitivity.choices)
    assert any(point.cost <= budget for point in chosen.pareto)
    text = json.dumps(chosen.to_dict())
    assert json.loads(text)["config"] == chosen.config.to_dict()
    assert "predicted error" in str(chosen)


def test_a_missing_budget_is_told_before_anything_is_measured(chain: nn.Module) -> None:
    with pytest.raises(SparsebitError, match="exactly one budget"):
        mixed_precision(chain, CONFIG, [], example_inputs=None)
    for budget in ({"latency": 1.0}, {"size": 500.0, "measure": lambda config: 1.0}):
        with pytest.raises(SparsebitError, match="a budget of latency, and no other, needs measure="):
            mixed_precision(chain, CONFIG, [], example_inputs=None, **budget)  # type: ignore[arg-type]
