"""The record alone, nothing replaced: how a peer's tests end here without us. A pytest plugin."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.tests.substitution import Recorder, allow_missing_libraries, limit_ir_version


def pytest_configure(config: Any) -> None:
    limit_ir_version()
    allow_missing_libraries()
    config.pluginmanager.register(Recorder())
