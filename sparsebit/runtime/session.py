"""Open a model in a runtime: the one place where ONNX Runtime and OpenVINO are started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsebit.errors import SparsebitError
from sparsebit.registry import Registry
from sparsebit.runtime.packages import require

Optimize = Literal["all", "basic", "none"]
LONGEST_REASON = 300  # characters of a runtime's own message
_NUMPY = {"float": "float32", "double": "float64"}


class SessionError(SparsebitError):
    """A runtime could not open a model, or failed to run it."""


@dataclass(frozen=True, kw_only=True)
class InputInfo:
    """One input that a file declares; a free dimension is a name, or None."""

    name: str
    shape: tuple[int | str | None, ...]
    dtype: Any

    def fits(self, array: Any) -> bool:
        """Whether an array has the declared dimensions; a file may leave their number open."""
        shape = np.shape(array)
        if not self.shape:
            return True
        return len(shape) == len(self.shape) and all(
            not isinstance(wanted, int) or wanted == size
            for wanted, size in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Session:
    """An open model: a function from arrays by name to arrays by name."""

    runtime: str
    source: str  # the file, or "model in memory"
    inputs: tuple[InputInfo, ...]
    output_names: tuple[str, ...]
    execute: Callable[[dict[str, Any]], dict[str, Any]]

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model. Arrays that it does not read are ignored; a missing one is an error."""
        try:
            given = {value.name: feed[value.name] for value in self.inputs}
        except KeyError as missing:
            raise SessionError(
                f"input {missing.args[0]!r} is missing",
                where=self.source,
                expected=", ".join(value.name for value in self.inputs),
                got=", ".join(feed) or "no inputs",
            ) from None
        # OpenVINO returns empty results for arrays that do not fit a free dimension.
        for value in self.inputs:
            if not value.fits(given[value.name]):
                raise SessionError(
                    f"input {value.name!r} has another size than the file declares",
                    where=self.source,
                    expected=str(list(value.shape)),
                    got=str(list(np.shape(given[value.name]))),
                )
            # OpenVINO reads them as float16.
            if str(getattr(given[value.name], "dtype", "")) == "bfloat16":
                raise SessionError(
                    f"input {value.name!r} is in bfloat16, which {self.runtime} does not take from Python",
                    where=self.source,
                    hint="call .float() on it, or use a file with inputs in float32",
                )
        try:
            return self.execute(given)
        except SparsebitError:
            raise
        except Exception as error:  # the exceptions of runtimes have no common base
            raise SessionError(
                f"{self.runtime} could not run the model: {first_line(error)}", where=self.source
            ) from error


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How to open a model; ``open_session`` says what each means. The last three apply only to ONNX Runtime."""

    threads: int | None = None
    optimize: Optimize = "all"
    save_optimized: str | None = None
    weights_folder: str | None = None
    spinning: bool = True


# Opens a path or a serialized model in one runtime; any exception becomes a ``SessionError``.
Opener = Callable[[str | bytes, SessionOptions], Session]
RUNTIMES: Registry[Opener] = Registry("runtime")


def open_session(
    model: Any,
    *,
    runtime: str = "onnxruntime",
    threads: int | None = None,
    optimize: Optimize = "all",
    save_optimized: Path | None = None,
    weights_folder: Path | None = None,
    spinning: bool = True,
    isolated: bool = False,
) -> Session:
    """Open a model in a runtime, on the CPU.

    Args:
        model: a path, or an onnx ``ModelProto``.
        runtime: a name in ``RUNTIMES``.
        threads: how many threads the runtime may use; by default the runtime decides.
        optimize: how far the runtime may rewrite the graph; OpenVINO always rewrites as much as it can.
        save_optimized: where ONNX Runtime writes the graph it runs, weights beside it.
        weights_folder: where the external weights of a ``ModelProto`` are.
        spinning: False lets ONNX Runtime's threads sleep between calls, on cores that the next session needs.
        isolated: open and run the model in a child process. A runtime that ends its process on a model (some files
            make ONNX Runtime abort) is then an error here. Arrays are copied, so do not time such a session.

    Raises:
        SessionError: the file does not exist, or the runtime refuses it; with the runtime's reason.
    """
    opener = RUNTIMES[runtime]  # an unknown name is an error before anything else
    if isinstance(model, (str, os.PathLike)):
        if not Path(model).is_file():
            raise SessionError(f"no such file: {model}", hint=f"looked in {Path.cwd()}")
        source: str | bytes = str(model)
    else:
        source = model.SerializeToString()
    options = SessionOptions(
        threads=threads,
        optimize=optimize,
        save_optimized=None if save_optimized is None else os.path.abspath(save_optimized),
        weights_folder=None if weights_folder is None else os.path.abspath(weights_folder),
        spinning=spinning,
    )
    opened: Callable[..., Session] = open_source
    if isolated and opener in (_open_onnxruntime, _open_openvino):  # a child knows no plug-ins
        from sparsebit.runtime.isolation import open_isolated

        opened = open_isolated
    return opened(source, runtime, options)


def open_source(source: str | bytes, runtime: str, options: SessionOptions) -> Session:
    """Open a path or a serialized model in this process."""
    try:
        return RUNTIMES[runtime](source, options)
    except SparsebitError:
        raise
    except Exception as error:
        raise SessionError(
            f"{runtime} could not open the model: {first_line(error)}", where=describe(source)
        ) from error


@RUNTIMES.register("onnxruntime")
def _open_onnxruntime(source: str | bytes, options: SessionOptions) -> Session:
    ort = require("onnxruntime")
    settings, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    settings.log_severity_level = 4
    if options.threads is not None:
        settings.intra_op_num_threads = options.threads
    settings.graph_optimization_level = {
        "all": levels.ORT_ENABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "none": levels.ORT_DISABLE_ALL,
    }[options.optimize]
    if (optimized := options.save_optimized) is not None:
        settings.optimized_model_filepath = optimized
        for key, value in (("file_name", f"{Path(optimized).name}.data"), ("min_size_in_bytes", "1024")):
            settings.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
    if options.weights_folder is not None:
        settings.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", options.weights_folder
        )
    if not options.spinning:
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(source, settings, ["CPUExecutionProvider"])
    names = tuple(value.name for value in session.get_outputs())
    return Session(
        runtime="onnxruntime",
        source=describe(source),
        inputs=tuple(
            InputInfo(name=value.name, shape=tuple(value.shape), dtype=_numpy_type(value.type))
            for value in session.get_inputs()
        ),
        output_names=names,
        execute=lambda feed: dict(zip(names, session.run(None, feed), strict=True)),
    )


@RUNTIMES.register("openvino")
def _open_openvino(source: str | bytes, options: SessionOptions) -> Session:
    openvino = require("openvino")
    core = openvino.Core()
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
    if options.threads is not None:
        settings["INFERENCE_NUM_THREADS"] = options.threads
    compiled = core.compile_model(core.read_model(source), "CPU", settings)
    request = compiled.create_infer_request()

    def execute(feed: dict[str, Any]) -> dict[str, Any]:
        request.infer(feed)
        return {
            name: request.get_output_tensor(index).data.copy()
            for index, value in enumerate(compiled.outputs)
            for name in value.get_names()  # one output can have several names
        }

    return Session(
        runtime="openvino",
        source=describe(source),
        inputs=tuple(
            InputInfo(
                name=_name_in_file(value),
                shape=tuple(size.get_length() if size.is_static else None for size in value.partial_shape),
                dtype=np.dtype(value.element_type.to_dtype()),
            )
            for value in compiled.inputs
        ),
        output_names=tuple(map(_name_in_file, compiled.outputs)),
        execute=execute,
    )


def _name_in_file(port: Any) -> str:
    """The file's own name of an input or output of OpenVINO, which also lists those behind casts that do nothing."""
    own = str(port.get_node().get_friendly_name()).removesuffix("/sink_port_0")
    return own if own in port.get_names() else str(port.any_name)


def first_line(error: BaseException) -> str:
    """The first line of an error that says something, shortened; its type if it says nothing.

    Example:
        >>> first_line(ValueError("Exception from src/core.cpp:117:\\nwrong\\nand more"))
        'wrong'
    """
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception from ")]  # OpenVINO's own source
    return lines[0][:LONGEST_REASON] if lines else type(error).__name__


def describe(source: str | bytes) -> str:
    """The name of a model in messages."""
    return source if isinstance(source, str) else "model in memory"


def _numpy_type(text: str) -> Any:
    """The numpy type of ``tensor(float)`` and the like."""
    kind = text.removeprefix("tensor(").removesuffix(")")
    if kind == "bfloat16":
        return np.dtype(require("ml_dtypes").bfloat16)
    try:
        return np.dtype(_NUMPY.get(kind, kind))
    except TypeError:
        return np.dtype(object)  # strings and sequences
