"""torch.fx's tests with our capture in place of ``torch.fx.symbolic_trace``. A pytest plugin.

Their function sees a model without inputs, so ours is the front-end that needs none. Functions, arguments that are
given values, and graphs that torch's own passes are tested on stay with torch and are not counted as ours.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.fx
from torch import nn

from benchmarks.peers.tests.substitution import Recorder, allow_missing_libraries
from sparsebit import capture

RECORDER = Recorder()
THEIR_TRACE = torch.fx.symbolic_trace


def symbolic_trace(root: Any, concrete_args: dict[str, Any] | None = None) -> Any:
    of_tracing = sys._getframe(1).f_globals["__name__"] == "test_fx"
    if concrete_args is not None or not isinstance(root, nn.Module) or not of_tracing:
        return THEIR_TRACE(root, concrete_args)
    return _capture(root)


@RECORDER.count
def _capture(root: nn.Module) -> Any:
    return capture(root, frontend="symbolic")


def pytest_configure(config: Any) -> None:
    allow_missing_libraries()
    config.pluginmanager.register(RECORDER)
    torch.fx.symbolic_trace = symbolic_trace
