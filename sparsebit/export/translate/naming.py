"""Names in the file: those of the user's modules, and symbols for the sizes that may change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.flat_graph import SEPARATOR
from sparsebit.graph.capture.call.structure import leaves_of
from sparsebit.runtime.packages import require

# The scope of the wrapper; the tracer repeats it before a module whose name is a number: /body/body.0/Conv
_PREFIX = re.compile(r"^/body/(body\.(?=\d))?")


def unique(name: str, taken: set[str]) -> str:
    """``name``, or the name with a number if it is already in use; the result is added to the names in use.

    Example:
        >>> unique("conv", {"conv", "conv_1"})
        'conv_2'
    """
    candidate, number = name, 1
    while candidate and candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate


def strip_prefix(model: Any) -> None:
    """Remove the prefix that the tracer put before every name; call it directly after translating.

    At that time every name has the prefix exactly once, so a user's module that is called ``body`` keeps its name.
    """
    graph = model.graph
    keep = {*graph.inputs, *graph.outputs}
    values = {value.name for value in keep} | set(graph.initializers)
    names: set[str] = set()
    for node in graph.all_nodes():
        node.name = unique(_without_prefix(node.name), names)
        for value in node.outputs:
            if value not in keep:
                value.name = unique(_without_prefix(value.name), values)


def own_output_names(gm: fx.GraphModule, count: int, inputs: Sequence[str]) -> list[str]:
    """Names for the output tensors: the keys of the model's own structure, such as ``logits``; else ``output``."""
    numbered = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    signature = getattr(gm, "call_signature", None)  # a graph that was not captured by sparsebit has none
    paths = [] if signature is None else [leaf.path for leaf in leaves_of(signature.output)]
    if len(paths) != count:  # some outputs are not tensors
        return numbered
    keys = [path.removeprefix("output_") for path in paths]
    names = [
        path if key[:1].isdigit() or key in inputs else key for path, key in zip(paths, keys, strict=True)
    ]
    return names if len(set(names)) == count else numbered


def label_shapes(
    model: Any,
    axes: AxisNames,
    results: Sequence[Tensor],
    outputs: Sequence[str],
    resized: Sequence[tuple[int, ...]] | None = None,
) -> None:
    """Forget the shapes inside the graph and label those of inputs and outputs.

    Shapes between nodes are dropped because runtimes refuse wrong ones, and infer them anyway.
    ``results`` are the outputs, and ``resized`` their shapes for inputs of another size along the dynamic ``axes``.
    """
    graph = model.graph
    graph.name = "main_graph"
    model.producer_name, model.producer_version = "sparsebit", None
    keep = {*graph.inputs, *graph.outputs}
    for node in graph.all_nodes():
        for value in node.outputs:
            if value not in keep:
                value.shape = value.type = None
    for value in graph.inputs:
        _label(value, axes.get(value.name, {}))
    if len(graph.outputs) == len(results):
        others: Sequence[tuple[int, ...] | None] = resized or [None] * len(results)
        for value, result, name, other in zip(graph.outputs, results, outputs, others, strict=True):
            _label_output(value, tuple(result.shape), axes, name, other)


def _without_prefix(name: str | None) -> str:
    if not name:
        return ""
    if _PREFIX.match(name):
        return _PREFIX.sub("", name)
    return name.removeprefix("body.").removeprefix(SEPARATOR)


def _label(value: Any, names: dict[int, str]) -> None:
    if value.shape is None:
        return
    shape = list(value.shape)
    for axis, name in names.items():
        shape[axis] = name
    value.shape = type(value.shape)(shape)


def _label_output(
    value: Any, sizes: tuple[int, ...], axes: AxisNames, name: str, other: tuple[int, ...] | None
) -> None:
    """Label fixed sizes by number, sizes that certainly equal an input's by its name, and others by position."""
    symbols = {label for found in axes.values() for label in found.values()}
    known: list[Any] = list(value.shape) if value.shape is not None else [None] * len(sizes)
    shape: list[int | str] = []
    for axis, size in enumerate(sizes):
        label = axes.get(name, {}).get(axis)
        given = known[axis] if len(known) > axis else None
        moves = other is not None and other[axis] != size
        if label is None and axes and (moves or not isinstance(given, int)):
            symbol = str(getattr(given, "value", ""))
            only = next(iter(symbols)) if len(symbols) == 1 and axis == 0 else None
            label = symbol if symbol in symbols else only or f"{name}_dim_{axis}"
        shape.append(size if label is None else label)
    value.shape = require("onnx_ir").Shape(shape)
