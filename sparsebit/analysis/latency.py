"""The time a model takes in a runtime on this machine's CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsebit.batches import as_call, to_device
from sparsebit.errors import SparsebitError
from sparsebit.export.onnx_export import export_onnx, graph_of
from sparsebit.graph.run import flatten_call
from sparsebit.runtime import PairedClock, open_session, time_call
from sparsebit.runtime.arrays import as_array


def runtime_call(
    model: nn.Module, example_inputs: Any, *, runtime: str = "onnxruntime", threads: int = 1
) -> Callable[[], Any]:
    """A function that runs the model in a runtime on the example inputs, after exporting it to a temporary file.

    Args:
        model: a ``QuantModel``, ``SparseModel`` or captured graph.
        example_inputs: what the call is given, on whose sizes the time depends: positional arguments, or a pair of a
            tuple of these and a dict of keyword arguments.
        runtime: a name in ``sparsebit.runtime.RUNTIMES``: ``onnxruntime`` or ``openvino``.
        threads: how many threads the runtime may use.
    """
    args, kwargs = as_call(example_inputs)
    values = map(as_array, flatten_call(graph_of(model, args, kwargs), args, kwargs))
    with tempfile.TemporaryDirectory() as folder:
        done = export_onnx(model, (args, kwargs), Path(folder) / "model.onnx", check=False)
        feed = dict(zip(done.exported.input_names, values, strict=True))
        # Nothing has run this file yet: a runtime that aborts on it ends a child, and not this process.
        open_session(done.path, runtime=runtime, threads=threads, isolated=True).run(feed)
        session = open_session(done.path, runtime=runtime, threads=threads)
    return lambda: session.run(feed)


def runtime_latency(
    model: nn.Module,
    example_inputs: Any,
    *,
    runtime: str = "onnxruntime",
    threads: int = 1,
    rounds: int = 15,
) -> float:
    """Seconds of one call in a runtime; takes what ``runtime_call`` takes.

    Args:
        rounds: number of calls, of which the median is returned.
    """
    return time_call(runtime_call(model, example_inputs, runtime=runtime, threads=threads), rounds=rounds)


class RuntimeClock:
    """Seconds of one call of a model in a runtime; the times of several models are comparable.

    Every model after the first is called alternately with the first, see ``PairedClock``.

    Args:
        example_inputs: as for ``runtime_call``, moved to the CPU.
        runtime: as for ``runtime_call``.
        where: the caller, for the message of a failure.
        otherwise: what to do instead of measuring here, for that message.
    """

    def __init__(
        self, example_inputs: Any, *, runtime: str = "onnxruntime", where: str = "", otherwise: str = ""
    ) -> None:
        self.examples, self.runtime = to_device(as_call(example_inputs), torch.device("cpu")), runtime
        self.where, self.otherwise = where, otherwise
        self._clock = PairedClock()

    def __call__(self, model: nn.Module) -> float:
        """Seconds of one call."""
        if not any(self.examples):
            raise SparsebitError(
                "the latency of a model depends on the sizes of its inputs, and none are known",
                where=self.where or None,
                hint="pass example_inputs",
            )
        try:
            return self._clock(runtime_call(model, self.examples, runtime=self.runtime))
        except SparsebitError as error:
            raise SparsebitError(
                f"the latency could not be measured in {self.runtime}: {error.message}",
                where=", ".join(filter(None, (self.where, error.where))) or None,
                expected=error.expected,
                got=error.got,
                hint="; or ".join(filter(None, (error.hint, self.otherwise))) or None,
            ) from error
