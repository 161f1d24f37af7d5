"""Translate a graph by the first engine whose result computes what the graph computes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sparsebit.export.errors import ExportError
from sparsebit.export.forms.editor import attribute
from sparsebit.export.translate import program_engine, script_engine
from sparsebit.export.translate.axes import AxisNames, resized
from sparsebit.export.translate.flat_graph import FlatGraph, original_name
from sparsebit.export.translate.marker import DOMAIN
from sparsebit.export.translate.undisturbed import same_state, writes_in_place
from sparsebit.runtime.packages import require
from sparsebit.runtime.session import open_session

Engine = Literal["auto", "script", "program"]
LARGEST_IN_MEMORY = 1_800_000_000  # bytes; a protobuf message ends at 2 GiB
logger = logging.getLogger(__name__)


@dataclass
class Translation:
    """A float model with markers in it (``onnx_ir``), and how it was made."""

    model: Any
    engine: str
    axes: AxisNames
    attempts: tuple[str, ...] = ()  # what failed before


@dataclass
class Request:
    """What to translate."""

    flat: FlatGraph
    inputs: Sequence[Tensor]
    names: Sequence[str]
    outputs: Sequence[str]
    choices: Sequence[AxisNames]  # dynamic axes to try, the freest first
    opset: int
    marked: Collection[str] = ()  # tensors whose markers the translation must have


def translate(request: Request, engine: Engine = "auto") -> Translation:
    """Try each engine with each choice of dynamic axes; verify what comes out.

    A translation is compared with the graph in float on the example and on an example of another size along the dynamic
    axes, so that a length which was frozen by accident is found here and not by a user.
    """
    stateful = writes_in_place(request.flat.body)
    order = ["program", "script"] if stateful else ["script", "program"]
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
                with same_state(request.flat, parameters=stateful):
                    model = _RUN[name](request, axes)
                _require_markers(model, request.marked)
            except Exception as error:
                attempts.append(f"{name}{_spell(axes)}: {_root_of(error)}")
                logger.info("export attempt failed: %s", attempts[-1])
                continue
            return Translation(model, name, axes, tuple(attempts))
    raise ExportError(
        "no exporter could translate this graph",
        got="; ".join(attempts),
        hint="the messages name the operator: replace it in the model by ones ONNX has, or leave that part out of "
        "what is exported; where a size is named instead, a fixed batch (dynamic_axes={}) may help",
    )


def _require_markers(model: Any, marked: Collection[str]) -> None:
    """Refuse a translation that lost a quantizer: a tracer folds what depends on no input into a constant."""
    found = {attribute(node, "key") for node in model.graph.all_nodes() if node.domain == DOMAIN}
    if missing := sorted(set(marked) - found):
        raise ExportError(f"the quantizer of {missing[0]!r} is missing in the translation")


def possible_axes(request: Request) -> tuple[list[AxisNames], list[str]]:
    """The choices that the graph itself computes with, and why it does not with the others."""
    possible, reasons = [], []
    for axes in request.choices:
        other = resized(request.inputs, request.names, axes)
        try:
            if other is not None and len(request.choices) > 1:
                with torch.no_grad(), same_state(request.flat, parameters=writes_in_place(request.flat.body)):
                    request.flat(*other)
            possible.append(axes)
        except Exception as error:
            labels = " and ".join(dict.fromkeys(label for found in axes.values() for label in found.values()))
            reasons.append(f"the graph takes no other {labels}: {_root_of(error)}")
    return possible, reasons


def _root_of(error: BaseException) -> str:
    """The first line of what went wrong first; exporters wrap it in advice of their own."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().split("\n") or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _spell(axes: AxisNames) -> str:
    return "" if axes else " (fixed sizes)"


def _by_script(request: Request, axes: AxisNames) -> Any:
    ir = require("onnx_ir")
    with _state(request):
        proto, weights = script_engine.translate(
            request.flat, request.inputs, request.names, request.outputs, axes, request.opset
        )
    _verify(request, axes, proto, {name: _array(value) for name, value in weights.items()})
    model = ir.serde.deserialize_model(proto)
    graph = model.graph
    for value in [value for value in graph.inputs if value.name in weights]:
        graph.inputs.remove(value)
        adapter = ir.tensor_adapters.TorchTensor(weights[value.name].cpu().contiguous(), name=value.name)
        value.const_value = adapter
        value.name = original_name(value.name)
        graph.register_initializer(value)
    return model


def _by_program(request: Request, axes: AxisNames) -> Any:
    ir = require("onnx_ir")
    with _state(request):
        model = program_engine.translate(
            request.flat, request.inputs, request.names, request.outputs, axes, request.opset
        )
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)
    if size < LARGEST_IN_MEMORY:
        _verify(request, axes, ir.serde.serialize_model(model), {})
    for value in list(model.graph.initializers.values()):
        name = original_name(value.name)
        if name != value.name and name not in model.graph.initializers:
            del model.graph.initializers[value.name]
            value.name = name
            model.graph.register_initializer(value)
    return model


def _state(request: Request) -> AbstractContextManager[None]:
    return same_state(request.flat, parameters=writes_in_place(request.flat.body))


_RUN = {"script": _by_script, "program": _by_program}


def _verify(request: Request, axes: AxisNames, proto: Any, weights: dict[str, Any]) -> None:
    """Compare the translation with the graph, markers taken as identities."""
    plain = type(proto)()
    plain.CopyFrom(proto)
    for node in _all_nodes(plain.graph):
        if node.domain == DOMAIN:
            node.domain, node.op_type = "", "Identity"
            del node.attribute[:]
    half = any(x.dtype in _HALF for x in [*request.flat.parameters(), *request.inputs])
    # half precision needs the casts that the basic optimizations add
    session = open_session(plain, threads=torch.get_num_threads(), optimize="basic" if half else "none")
    for inputs in (request.inputs, resized(request.inputs, request.names, axes)):
        if inputs is None:
            continue
        try:
            wanted = _reference(request.flat, inputs)
        except Exception:
            if inputs is request.inputs:
                raise
            continue  # twice as long is more than this model takes (a table of positions, say)
        if wanted is None:
            return  # random numbers: nothing to compare
        feed = weights | {name: _array(x) for name, x in zip(request.names, inputs, strict=True)}
        got = list(session.run(feed).values())
        if problem := _difference(got, wanted):
            raise ExportError(f"the translation computes something else: {problem}")


def _reference(flat: FlatGraph, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """What the graph computes; None if it draws random numbers."""
    results = []
    for seed in (0, 1):
        with torch.no_grad(), same_state(flat, parameters=writes_in_place(flat.body)):
            torch.manual_seed(seed)
            results.append([value.clone() for value in flat(*(x.clone() for x in inputs))])
    first, second = results
    same = all(
        torch.allclose(a.float(), b.float(), equal_nan=True) for a, b in zip(first, second, strict=True)
    )
    return first if same else None


_HALF = (torch.float16, torch.bfloat16)


def _difference(got: Sequence[Any], wanted: Sequence[Tensor]) -> str | None:
    if len(got) != len(wanted):
        return f"{len(got)} outputs instead of {len(wanted)}"
    for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        right = _array(theirs)
        left = np.asarray(ours)
        if left.shape != right.shape:
            return f"output {index} has shape {left.shape} instead of {right.shape}"
        if not right.size:
            continue
        if right.dtype.kind not in "fc":
            off = float(np.mean(left != right))
            if off > 0.02:
                return f"{off:.0%} of output {index} differs"
            continue
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        a, b = left.astype(wide), right.astype(wide)
        known = np.isfinite(b)
        if not np.array_equal(known, np.isfinite(a)) or not known.any():
            if not known.any() and not np.isfinite(a).any():
                continue
            return f"output {index} has infinities or NaN in other places"
        limit = 2e-2 if theirs.dtype in _HALF else 1e-3
        error = float(np.abs(a[known] - b[known]).max() / max(float(np.abs(b[known]).max()), 1e-6))
        if error > limit:
            return f"output {index} differs by {error:.1e} of its largest value"
    return None


def _array(value: Tensor) -> Any:
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy().view(require("ml_dtypes").bfloat16)
    return value.numpy()


def _all_nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for found in node.attribute:
            if found.HasField("g"):
                yield from _all_nodes(found.g)
