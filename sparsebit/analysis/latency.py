"""How long a call takes: of any function, and of a model in a runtime on this machine's CPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from torch import nn
from torch.fx import GraphModule

from sparsebit.export import export_onnx
from sparsebit.graph.run import flatten_call
from sparsebit.runtime.packages import require


def time_call(call: Callable[[], Any], *, rounds: int = 20, warm_up: int = 3, at_least: float = 0.2) -> float:
    """Seconds of one call: of the fastest of several rounds, since what others do on the machine only adds.

    Example:
        >>> 0 < time_call(lambda: sum(range(1000)), rounds=3, at_least=0.001) < 1
        True
    """
    for _ in range(warm_up):
        call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    repeats = max(1, round(at_least / rounds / once))
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        seconds.append((time.perf_counter() - start) / repeats)
    return min(seconds)


def runtime_latency(
    model: nn.Module,
    example_inputs: Any,
    *,
    runtime: Literal["onnxruntime", "openvino"] | str = "onnxruntime",
    threads: int = 1,
    rounds: int = 20,
) -> float:
    """Seconds of one call in a runtime, after exporting the model to a temporary file.

    Args:
        model: a ``QuantModel``, ``SparseModel`` or captured graph.
        example_inputs: what the call is given, on whose sizes the time depends: positional arguments, or a pair of a
            tuple of these and a dict of keyword arguments.
        runtime: ``onnxruntime`` or ``openvino``, on the CPU.
        threads: that the runtime may use.
        rounds: of which the fastest counts.
    """
    call = runtime_call(model, example_inputs, runtime=runtime, threads=threads)
    return time_call(call, rounds=rounds)


def runtime_call(
    model: nn.Module,
    example_inputs: Any,
    *,
    runtime: Literal["onnxruntime", "openvino"] | str = "onnxruntime",
    threads: int = 1,
) -> Callable[[], Any]:
    """The model in a runtime, ready to be called on the example inputs; takes what ``runtime_latency`` takes."""
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    pair = len(inputs) == 2 and isinstance(inputs[0], (tuple, list)) and isinstance(inputs[1], dict)
    args, kwargs = inputs if pair else (inputs, {})
    graph = model if isinstance(model, GraphModule) else cast(GraphModule, model.model)
    values = [value.detach().cpu().numpy() for value in flatten_call(graph, tuple(args), kwargs)]
    with tempfile.TemporaryDirectory() as folder:
        done = export_onnx(model, (tuple(args), kwargs), Path(folder) / "model.onnx", check=False)
        feed = dict(zip(done.exported.input_names, values, strict=True))
        load = _in_openvino if runtime == "openvino" else _in_onnxruntime
        call = load(done.path, threads)
    return lambda: call(feed)


def onnx_latency(model: nn.Module, example_inputs: Any, *, threads: int = 1, rounds: int = 20) -> float:
    """``runtime_latency`` in ONNX Runtime."""
    return runtime_latency(model, example_inputs, threads=threads, rounds=rounds)


def _in_onnxruntime(path: Path, threads: int) -> Callable[[dict[str, Any]], Any]:
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def _in_openvino(path: Path, threads: int) -> Callable[[dict[str, Any]], Any]:
    openvino = require("openvino")
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(path)), "CPU", {"INFERENCE_NUM_THREADS": threads})
    request = compiled.create_infer_request()
    return request.infer  # type: ignore[no-any-return]
