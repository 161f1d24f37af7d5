"""The config fuzzer: its cases are repeatable, and none of the first ones is wrong."""

from __future__ import annotations

import pytest

from benchmarks.robustness import config_fuzz


def test_mutated_configs_load_or_end_in_our_error() -> None:
    result = config_fuzz.run(count=300, seed=0)
    assert result["wrong"] == {}
    assert set(result["outcomes"]) == {"loaded", "refused"}
    assert result == config_fuzz.run(count=300, seed=0)


def test_a_foreign_error_is_reported_with_the_seed_of_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(config_fuzz, "load_qconfig", fail)
    monkeypatch.setattr(config_fuzz, "load_sconfig", fail)
    wrong = config_fuzz.run(count=10, seed=0)["wrong"]
    assert wrong and all("foreign: KeyError" in text for text in wrong.values())
