"""Hidden states on disk: the same result as in memory."""

from __future__ import annotations

import pytest
import torch

from sparsebit import llm
from sparsebit.llm.blocks import solve, spill
from tests.llm.models import DECODERS, tokens


def test_a_model_solved_from_disk_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"W": {"BIT": 3}, "METHOD": "gptq", "CALIBRATION": {"SAMPLES": 12, "LENGTH": 16}}
    in_memory = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    monkeypatch.setattr(spill, "MOST_BYTES", 0)
    monkeypatch.setattr(solve, "MOST_BYTES", 0)
    assert not isinstance(spill.spilled([torch.ones(2)]), list)
    on_disk = llm.quantize(DECODERS["llama"](), tokens(), config, progress=False)
    for name, held in in_memory.weights.items():
        assert torch.equal(held.bits, on_disk.weights[name].bits), name
