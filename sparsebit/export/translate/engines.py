"""Translate a graph with the first engine whose result computes the same as the graph."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sparsebit.errors import ExportError
from sparsebit.export.forms.editor import attribute
from sparsebit.export.numbers import relative_error
from sparsebit.export.translate import program_engine, script_engine
from sparsebit.export.translate.axes import AxisNames, resized
from sparsebit.export.translate.flat_graph import original_name
from sparsebit.export.translate.marker import DOMAIN
from sparsebit.export.translate.request import TranslationRequest
from sparsebit.export.translate.spellings import TIES, Spelled
from sparsebit.progress import waiting
from sparsebit.runtime.arrays import as_array
from sparsebit.runtime.packages import require
from sparsebit.runtime.session import open_session

Engine = Literal["auto", "script", "program"]
Shapes = list[tuple[int, ...]] | None
LARGEST_IN_MEMORY = 1_800_000_000  # bytes; a protobuf message ends at 2 GiB
logger = logging.getLogger(__name__)


@dataclass
class Translation:
    """A float model with markers in it (``onnx_ir``), and how it was made."""

    model: Any
    engine: str
    axes: AxisNames
    resized: Shapes = None  # of the outputs, for inputs of another size
    attempts: tuple[str, ...] = ()  # engines and axes that failed before


def translate(request: TranslationRequest, engine: Engine = "auto") -> Translation:
    """Try each engine with each choice of dynamic axes, and verify the result.

    A translation is compared with the graph in float on the example and on an example of another size along the dynamic
    axes, so that a length fixed by accident is found here.
    """
    order = ["program", "script"] if request.stateful else ["script", "program"]
    if not hasattr(torch.onnx, "register_custom_op_symbolic"):
        order.remove("script")
    if request.opset < program_engine.LOWEST_OPSET:
        order.remove("program")
    if engine != "auto":
        order = [engine]
    attempts: list[str] = []
    for axes in request.choices:
        for name in order:
            try:
                with request.state.undone(), waiting(f"translating to ONNX ({name})"):
                    model, shapes = _RUN[name](request, axes)
                _require_markers(model, request.marked)
            except Exception as error:
                attempts.append(f"{name}{_spell(axes)}: {_root_of(error)}")
                logger.info("export attempt failed: %s", attempts[-1])
                continue
            return Translation(model, name, axes, shapes, tuple(attempts))
    hint = (
        "the messages name the operator: replace it with operators that ONNX has, or do not export that part of "
        "the model; if they name a size instead, a fixed batch (dynamic_axes={}) may help"
    )
    if any(x.dtype == torch.float64 for x in (*request.flat.parameters(), *request.inputs)):
        hint = "ONNX Runtime lacks float64 kernels of many operators; call .float() on the model before quantizing it"
    raise ExportError("no exporter could translate this graph", got="; ".join(attempts), hint=hint)


def _require_markers(model: Any, marked: Collection[str]) -> None:
    """Raise an error if a quantizer was lost: tracers fold everything that depends on no input into a constant."""
    found = {attribute(node, "key") for node in model.graph.all_nodes() if node.domain == DOMAIN}
    if missing := sorted(set(marked) - found):
        raise ExportError(f"the quantizer of {missing[0]!r} is missing in the translation")


def possible_axes(request: TranslationRequest) -> tuple[list[AxisNames], list[str]]:
    """The choices of dynamic axes that the graph itself supports, and why it does not support the others."""
    possible, reasons = [], []
    for axes in request.choices:
        other = resized(request.inputs, request.names, axes)
        try:
            if other is not None and len(request.choices) > 1:
                with torch.no_grad(), request.state.undone():
                    request.flat(*other)
            possible.append(axes)
        except Exception as error:
            labels = " and ".join(dict.fromkeys(label for found in axes.values() for label in found.values()))
            reasons.append(f"the graph does not run with another {labels}: {_root_of(error)}")
    return possible, reasons


def _root_of(error: BaseException) -> str:
    """The first line of the original error, without the advice that exporters wrap around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().split("\n") or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _spell(axes: AxisNames) -> str:
    return "" if axes else " (fixed sizes)"


def _by_script(request: TranslationRequest, axes: AxisNames) -> tuple[Any, Shapes]:
    ir = require("onnx_ir")
    proto, weights = script_engine.translate(request, axes)
    shapes = _verify(request, axes, proto, {name: as_array(value) for name, value in weights.items()})
    model = ir.serde.deserialize_model(proto)
    graph = model.graph
    for value in [value for value in graph.inputs if value.name in weights]:
        graph.inputs.remove(value)
        adapter = ir.tensor_adapters.TorchTensor(weights[value.name].cpu().contiguous(), name=value.name)
        value.const_value = adapter
        value.name = original_name(value.name)
        graph.register_initializer(value)
    return model, shapes


def _by_program(request: TranslationRequest, axes: AxisNames) -> tuple[Any, Shapes]:
    ir = require("onnx_ir")
    model = program_engine.translate(request, axes)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    shapes: Shapes = None
    if size < LARGEST_IN_MEMORY:
        shapes = _verify(request, axes, ir.serde.serialize_model(model), {})
    for value in list(model.graph.initializers.values()):
        name = original_name(value.name)
        if name != value.name and name not in model.graph.initializers:
            del model.graph.initializers[value.name]
            value.name = name
            model.graph.register_initializer(value)
    return model, shapes


_RUN = {"script": _by_script, "program": _by_program}


def _verify(request: TranslationRequest, axes: AxisNames, proto: Any, weights: dict[str, Any]) -> Shapes:
    """Compare the translation with the graph, treating markers as identities; returns the shapes at another size."""
    plain = type(proto)()
    plain.CopyFrom(proto)
    for node in _all_nodes(plain.graph):
        if node.domain == DOMAIN:
            node.domain, node.op_type = "", "Identity"
            del node.attribute[:]
    half = any(
        x.dtype in (torch.float16, torch.bfloat16) for x in [*request.flat.parameters(), *request.inputs]
    )
    # half precision needs the casts that the basic optimizations add
    session = open_session(
        plain, threads=torch.get_num_threads(), optimize="basic" if half else "none", isolated=True
    )
    shapes: Shapes = None
    for inputs in (request.inputs, resized(request.inputs, request.names, axes)):
        if inputs is None:
            continue
        try:
            wanted = _reference(request, inputs)
        except Exception:
            if inputs is request.inputs:
                raise
            continue  # twice as long is more than this model accepts (a table of positions, for example)
        if wanted is None:
            return None  # random numbers: nothing to compare
        feed = weights | {name: as_array(x) for name, x in zip(request.names, inputs, strict=True)}
        _require_equal(list(session.run(feed).values()), wanted)
        shapes = None if inputs is request.inputs else [tuple(value.shape) for value in wanted]
    return shapes


def _reference(request: TranslationRequest, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """The outputs of the graph; None if it draws random numbers."""
    before = torch.get_rng_state()
    with torch.no_grad(), request.state.undone(), Spelled(TIES):
        results = [value.clone() for value in request.flat(*(x.clone() for x in inputs))]
    return results if torch.equal(before, torch.get_rng_state()) else None


def _require_equal(got: Sequence[Any], wanted: Sequence[Tensor]) -> None:
    if len(got) != len(wanted):
        raise ExportError(f"the translation has {len(got)} outputs instead of {len(wanted)}")
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        if np.shape(ours) != tuple(theirs.shape):
            shapes = f"{np.shape(ours)} instead of {tuple(theirs.shape)}"
            raise ExportError(f"output {index} of the translation has shape {shapes}")
        exact = theirs.dtype in (torch.float32, torch.float64) or theirs.is_complex()
        error = relative_error(ours, theirs, smallest=1e-6)
        if error > (1e-3 if exact else 2e-2):
            raise ExportError(
                f"output {index} of the translation differs by {error:.1e} of its largest value"
            )


def _all_nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for found in node.attribute:
            if found.HasField("g"):
                yield from _all_nodes(found.g)
