"""Shrink the user's own model: its class, its forward, smaller layers; checked against the shrunk graph."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.errors import GraphError
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.copies import copy_module
from sparsebit.graph.ops.spec import place
from sparsebit.sparse.shrink.graph import cut_tensors, flatten_recurrent
from sparsebit.sparse.shrink.plan import Edit, Scaled, ShrinkPlan

_COUNTS = re.compile(r"(^|_)(n|num|nb|number)(_|$)|heads$|^nhead$|^groups$")
Attributes = dict[str, dict[str, Any]]  # module path -> attribute -> new value


def shrink_module(
    model: nn.Module,
    plan: ShrinkPlan,
    small: CapturedModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A smaller copy of the user's own model, equal to the shrunk graph on the inputs given.

    Layers get their new sizes, and so do numbers that the model's modules keep as attributes (``num_heads``)
    if the graph shows that a forward used them. A size that is hard-coded in a forward cannot be changed;
    an error is then raised, and the shrunk graph ``small`` should be used.

    Raises:
        GraphError: naming the places of constants that cannot be changed.
    """
    failures = []
    for attributes in candidate_attributes(model, plan, small):
        shrunk = apply_plan(model, plan, attributes)
        problem = output_difference(shrunk, small, args, dict(kwargs or {}))
        if problem is None:
            return shrunk
        failures.append(problem)
    places = dict.fromkeys(place(node) for node, _ in _edited(plan, small))
    raise GraphError(
        f"this model's own forward cannot run with fewer channels: {failures[-1]}",
        where="; ".join(list(places)[:3]) or None,
        expected="the outputs of the shrunk graph",
        hint="use the shrunk graph: it is an ordinary module that computes the same",
    )


def apply_plan(model: nn.Module, plan: ShrinkPlan, attributes: Attributes | None = None) -> nn.Module:
    """A copy of the model with smaller tensors and layers, without checks; used to rebuild a saved model."""
    shrunk = copy_module(model, cut_tensors(model, plan))
    modules = dict(shrunk.named_modules(remove_duplicate=False))
    for wanted in (plan.modules, attributes or {}):
        for path, values in wanted.items():
            for name, value in values.items():
                if path in modules and hasattr(modules[path], name):
                    setattr(modules[path], name, tuple(value) if isinstance(value, list) else value)
    flatten_recurrent(shrunk)
    return shrunk


def candidate_attributes(model: nn.Module, plan: ShrinkPlan, small: CapturedModule) -> Iterator[Attributes]:
    """Ways to explain the edited constants by attributes of the modules in whose forward they were used."""
    wide: Attributes = {}
    narrow: Attributes = {}
    modules = dict(model.named_modules(remove_duplicate=False))
    for node, edit in _edited(plan, small):
        path = str(node.meta.get("module_path") or "")
        for name, value in vars(modules.get(path, model)).items():
            new = _new_value(value, edit)
            if name.startswith("_") or new is None:
                continue
            wide.setdefault(path, {})[name] = new
            if _COUNTS.search(name):
                narrow.setdefault(path, {})[name] = new
    yield narrow
    if wide != narrow:
        yield wide
    if narrow:
        yield {}


def _edited(plan: ShrinkPlan, small: CapturedModule) -> Iterator[tuple[Node, Edit]]:
    nodes = {node.name: node for node in small.graph.nodes}
    for edit in plan.edits:
        if edit.node in nodes:
            yield nodes[edit.node], edit


def _new_value(value: object, edit: Edit) -> int | tuple[int, ...] | None:
    if isinstance(value, tuple | list) and len(value) == 1 and isinstance(edit.new, int):  # normalized_shape
        return (edit.new,) if value[0] == edit.old else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if isinstance(edit.new, Scaled):  # the constant is a factor of what was edited
        times, over = edit.new
        return value * int(times) // over if over > 1 and value % over == 0 and value > 1 else None
    return edit.new if isinstance(edit.new, int) and value == edit.old != edit.new else None


def output_difference(
    shrunk: nn.Module, small: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> str | None:
    """The difference between the outputs of two models, or None."""
    try:
        with torch.no_grad():
            got, want = (_run(model, args, kwargs) for model in (shrunk, small))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if not want or len(got) != len(want):
        return f"it gives {len(got)} tensors, the graph {len(want)}"
    for index, (left, right) in enumerate(zip(got, want, strict=True)):
        if left.shape != right.shape:
            return f"output {index} is {tuple(left.shape)} instead of {tuple(right.shape)}"
        tolerance = 1e-9 if right.dtype == torch.float64 else 1e-4
        scale = right.double().abs().nan_to_num().max() if right.numel() else 0
        apart = (left.double() - right.double()).abs().nan_to_num().max() if right.numel() else 0
        if float(apart) > tolerance * max(float(scale), 1e-12):
            return f"output {index} differs by {float(apart):.2g}"
    return None


def _run(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    model = copy_module(model).eval()  # a run may change buffers
    given, named = copy.deepcopy((tuple(args), kwargs))
    return [leaf for leaf in pytree.tree_leaves(model(*given, **named)) if isinstance(leaf, Tensor)]
