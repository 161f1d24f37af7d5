"""Pruning configs with a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit.errors import ConfigError
from sparsebit.sparse import parse_sconfig

CONFIG: dict[str, Any] = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}


def test_the_device_is_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert parse_sconfig(CONFIG).DEVICE == "cpu"
    with pytest.raises(
        ConfigError, match="DEVICE: expected auto, cpu or a GPU of this machine, got 'cuda:0'"
    ):
        parse_sconfig(CONFIG, ["DEVICE=cuda:0"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert parse_sconfig(CONFIG).DEVICE == "cuda"
