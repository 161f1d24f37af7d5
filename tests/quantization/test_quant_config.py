"""Configs with a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit.config import QConfig, preset_names
from sparsebit.errors import ConfigError
from sparsebit.quantization import parse_qconfig
from tests.quantization.nets import config


@pytest.mark.parametrize("name", preset_names())
def test_presets_by_name(name: str) -> None:
    parsed = parse_qconfig(name)
    assert isinstance(parsed, QConfig) and parsed.source == name
    assert ("cuda" if torch.cuda.is_available() else "cpu") == parsed.DEVICE


def test_a_device_that_is_named_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_qconfig(config(DEVICE="cuda:1")).DEVICE == "cuda:1"
    with pytest.raises(ConfigError, match="got 'cuda:2'; it has 2 GPUs"):
        parse_qconfig(config(DEVICE="cuda:2"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError) as caught:
        parse_qconfig(config(DEVICE="cuda"))
    assert str(caught.value) == (
        "qconfig: DEVICE: expected auto, cpu or a GPU of this machine, got 'cuda'; it has no GPU that torch can use: "
        "set DEVICE: auto, which uses a GPU if there is one, or DEVICE: cpu"
    )
    path = tmp_path / "q.yaml"
    path.write_text(parse_qconfig(config()).to_yaml(), encoding="utf-8")
    parsed = parse_qconfig(path)
    assert parsed.DEVICE == "cpu" and parsed.source == str(path)
    assert parse_qconfig(parsed) is parsed or parse_qconfig(parsed) == parsed


def test_overrides_win_and_mistakes_are_told_with_their_place() -> None:
    assert parse_qconfig("w4a8", ["W.QUANTIZER.BIT=3"]).W.QUANTIZER.BIT == 3
    with pytest.raises(ConfigError, match=r"W.QUANTIZER.BITT: unknown key; did you mean 'BIT'"):
        parse_qconfig(config(W__QUANTIZER__BITT=3))


def test_a_config_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    original = QConfig.conflicts
    monkeypatch.setattr(QConfig, "conflicts", lambda self: checked.append("") or original(self))
    assert parse_qconfig("w4a8", ["DEVICE=auto"]).DEVICE != "auto"
    assert len(checked) == 1
