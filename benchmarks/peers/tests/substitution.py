"""Our functions in place of a peer's while its own tests run, and a record of which tests reached them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

RECORD = "SPARSEBIT_PEER_RECORD"  # the file that receives the record


class Recorder:
    """A pytest plugin: per test, how it ended and how often it called one of our functions."""

    def __init__(self) -> None:
        self.calls = 0
        self.tests: dict[str, dict[str, Any]] = {}

    def count(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted."""

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return function(*args, **kwargs)

        return counted

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        before = self.calls
        yield
        self.tests.setdefault(item.nodeid, {})["calls"] = self.calls - before

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            found = self.tests.setdefault(report.nodeid, {})
            found["outcome"] = report.outcome
            found["reason"] = _reason(report)

    def pytest_sessionfinish(self) -> None:
        Path(os.environ[RECORD]).write_text(json.dumps(self.tests), encoding="utf-8")


def replace_everywhere(package: str, original: Any, ours: Any) -> None:
    """Put ``ours`` wherever a module of the package holds ``original`` under some name."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, ours)


def limit_ir_version() -> None:
    """Their tests take onnx's default file version, which may be newer than the installed ONNX Runtime reads."""
    import onnx

    onnx.IR_VERSION = 10


def allow_missing_libraries() -> None:
    """torch's tests load a library of test classes that its wheels leave out; few of them use it."""
    import torch

    load = torch.ops.load_library
    torch.ops.load_library = lambda path: load(path) if Path(path).is_file() else None


def _reason(report: Any) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    said = str(crash.message).partition("\n\nTo execute this test")[0] if crash else ""
    return " ".join(said.split())[:200]
