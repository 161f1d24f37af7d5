"""How long models take in ONNX Runtime, measured so that a busy machine cannot tip the scales."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sparsebit.above import call_above
from sparsebit.errors import SparsebitError
from sparsebit.sparse.evidence.batch import move

TURNS = 15
SHORTEST = 0.005  # seconds of one turn: a shorter call is repeated


class RuntimeClock:
    """Seconds of one call of a model in ONNX Runtime, on one thread of the CPU.

    The first model is the yardstick. Every other one is called in turns with it, and the median of their ratios counts:
    whatever else the machine is doing, now or a minute later, slows both of them alike.

    Args:
        examples: positional and keyword inputs of the call, on whose sizes the time depends.
        turns: how often two models take turns.
    """

    def __init__(self, examples: tuple[tuple[Any, ...], dict[str, Any]], turns: int = TURNS) -> None:
        self.examples, self.turns = move(examples, torch.device("cpu")), turns
        self._yardstick: tuple[Callable[[], Any], float] | None = None

    def __call__(self, model: nn.Module) -> float:
        """Seconds of one call."""
        call = self._load(model)
        if self._yardstick is None:
            self._yardstick = call, statistics.median(self._lap(call) for _ in range(self.turns))
            return self._yardstick[1]
        whole, seconds = self._yardstick
        ratios = [self._lap(call) / self._lap(whole) for _ in range(self.turns)]
        return seconds * statistics.median(ratios)

    def _load(self, model: nn.Module) -> Callable[[], Any]:
        args, kwargs = self.examples
        if not args and not kwargs:
            raise SparsebitError(
                "the latency of a model depends on the sizes of its inputs, and none are known",
                where="SPARSER.TARGET latency",
                hint="give SparseModel example_inputs",
            )
        try:
            call: Callable[[], Any] = call_above(
                "sparsebit.analysis.latency.runtime_call", model.cpu(), self.examples
            )
            for _ in range(2):  # the first calls of a session also plan its memory
                call()
        except SparsebitError as error:
            own = "pass latency=..., a function from a model to seconds"
            raise SparsebitError(
                f"latency is measured in ONNX Runtime, and that failed: {error.message}",
                where=f"SPARSER.TARGET latency{f', {error.where}' if error.where else ''}",
                expected=error.expected,
                got=error.got,
                hint=f"{error.hint}; or {own}" if error.hint else own,
            ) from error
        return call

    def _lap(self, call: Callable[[], Any]) -> float:
        """Seconds of one call, over as many as can be timed well."""
        start, count = time.perf_counter(), 0
        while True:
            call()
            count += 1
            elapsed = time.perf_counter() - start
            if elapsed >= SHORTEST:
                return elapsed / count
