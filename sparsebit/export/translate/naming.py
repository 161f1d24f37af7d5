"""Names in the file: those of the user's modules, and symbols for the sizes that may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.flat_graph import SEPARATOR
from sparsebit.runtime.packages import require

_PREFIX = "/body/"


def tidy_names(model: Any, axes: AxisNames, results: Sequence[Tensor], outputs: Sequence[str]) -> None:
    """Take the tracer's prefix off every name, forget shapes inside the graph and label those of inputs and outputs.

    Shapes between the nodes are dropped because runtimes refuse ones that do not fit any more, and infer them anyway.
    """
    graph = model.graph
    graph.name = "main_graph"
    model.producer_name, model.producer_version = "sparsebit", None
    keep = {*graph.inputs, *graph.outputs}
    taken = {value.name for value in keep} | set(graph.initializers)
    for node in graph.all_nodes():
        node.name = _tidy(node.name)
        for value in node.outputs:
            if value in keep:
                continue
            value.shape = None
            value.type = None
            name = _tidy(value.name)
            if name not in taken:
                value.name = name
            taken.add(value.name)
    for value in graph.inputs:
        _label(value, axes.get(value.name, {}))
    if len(graph.outputs) == len(results):
        for value, result, name in zip(graph.outputs, results, outputs, strict=True):
            _label_output(model, value, result, axes, name)


def _tidy(name: str | None) -> str:
    if not name:
        return ""
    if name.startswith(_PREFIX):
        name = name.removeprefix(_PREFIX)
    return name.replace(f"body.{SEPARATOR}", "").removeprefix("body.")


def _label(value: Any, names: dict[int, str]) -> None:
    if value.shape is None:
        return
    shape = list(value.shape)
    for axis, name in names.items():
        shape[axis] = name
    value.shape = type(value.shape)(shape)


def _label_output(model: Any, value: Any, result: Tensor, axes: AxisNames, name: str) -> None:
    """Fixed sizes as they are, sizes that follow an input by its name where that is certain, others by their place."""
    symbols = {label for found in axes.values() for label in found.values()}
    known: list[Any] = list(value.shape) if value.shape is not None else [None] * result.dim()
    shape: list[int | str] = []
    for axis, size in enumerate(result.shape):
        label = axes.get(name, {}).get(axis)
        if label is None and axes and (len(known) <= axis or not isinstance(known[axis], int)):
            given = str(known[axis].value) if len(known) > axis and hasattr(known[axis], "value") else ""
            only = next(iter(symbols)) if len(symbols) == 1 and axis == 0 else None
            label = given if given in symbols else only or f"{name}_dim_{axis}"
        shape.append(label if label is not None else size)
    value.shape = require("onnx_ir").Shape(shape)
