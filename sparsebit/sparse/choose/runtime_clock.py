"""How long models take in ONNX Runtime, for pruning towards a latency."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sparsebit.batches import to_device
from sparsebit.errors import SparsebitError
from sparsebit.runtime import PairedClock


class RuntimeClock:
    """Seconds of one call of a model in ONNX Runtime, on one thread of the CPU.

    Every model after the first is called in turns with the first, see ``PairedClock``.

    Args:
        examples: positional and keyword inputs of the call, on whose sizes the time depends.
    """

    def __init__(self, examples: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self.examples, self._clock = to_device(examples, torch.device("cpu")), PairedClock()

    def __call__(self, model: nn.Module) -> float:
        """Seconds of one call."""
        from sparsebit.analysis import latency

        args, kwargs = self.examples
        if not args and not kwargs:
            raise SparsebitError(
                "the latency of a model depends on the sizes of its inputs, and none are known",
                where="SPARSER.TARGET latency",
                hint="give SparseModel example_inputs",
            )
        try:
            return self._clock(latency.runtime_call(model.cpu(), self.examples))
        except SparsebitError as error:
            own = "pass latency=..., a function from a model to seconds"
            raise SparsebitError(
                f"latency is measured in ONNX Runtime, and that failed: {error.message}",
                where=f"SPARSER.TARGET latency{f', {error.where}' if error.where else ''}",
                expected=error.expected,
                got=error.got,
                hint=f"{error.hint}; or {own}" if error.hint else own,
            ) from error
