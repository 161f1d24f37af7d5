"""The runtimes a file can be run in, behind one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sparsebit.runtime.packages import require

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def in_onnxruntime(
    model: Any, *, optimize: bool = True, optimized: Path | None = None, folder: Path | None = None
) -> Run:
    """A function from named arrays to named arrays.

    ``model`` is a path or an onnx ModelProto, whose external weights are in ``folder``. The optimized graph goes to
    ``optimized``, its weights beside it.
    """
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        for key, value in (("file_name", f"{optimized.name}.data"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    source = str(model) if isinstance(model, (str, Path)) else model.SerializeToString()
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = runtime.InferenceSession(source, options, ["CPUExecutionProvider"])
    wanted = [value.name for value in session.get_inputs()]
    names = [value.name for value in session.get_outputs()]

    def run(feed: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(None, {name: feed[name] for name in wanted}), strict=True))

    return run


def in_openvino(model: Any, *, optimize: bool = True) -> Run:
    """The same in OpenVINO's CPU plugin."""
    openvino = require("openvino")
    source = str(model) if isinstance(model, (str, Path)) else model.SerializeToString()
    core = openvino.Core()
    read = core.read_model(source)
    compiled = core.compile_model(
        read, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    )
    inputs = {name for value in compiled.inputs for name in value.get_names()}
    request = compiled.create_infer_request()

    def run(feed: Mapping[str, Any]) -> dict[str, Any]:
        request.infer({name: value for name, value in feed.items() if name in inputs})
        found = {}
        for index, value in enumerate(compiled.outputs):
            for name in value.get_names():
                found[name] = request.get_output_tensor(index).data.copy()
        return found

    return run
