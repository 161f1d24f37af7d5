"""Shrink the user's own model: its class, its forward, smaller layers; checked against the shrunk graph."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.errors import GraphError
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.capture.call.structure import tensors_of
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
    """The difference between the outputs of two models, or None.

    Heads that are regrouped cannot be seen on equal numbers: an input that is constant is tried with others as well.
    """
    calls = [(tuple(args), kwargs)]
    for kind in (Tensor.is_floating_point, lambda tensor: tensor.dtype != torch.bool):
        varied = pytree.tree_map_only(Tensor, partial(_vary, kind), calls[0])
        if any(map(operator.is_not, pytree.tree_leaves(varied), pytree.tree_leaves(calls[-1]))):
            calls.append(varied)
    for call in calls:
        try:
            want = _run(small, *call)
        except Exception as error:
            if call is calls[0]:
                return _describe(error)
            continue  # the model does not accept these numbers
        try:
            problem = _difference(_run(shrunk, *call), want)
        except Exception as error:
            problem = _describe(error)
        if problem is not None:
            return problem
    return None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _vary(kind: Callable[[Tensor], bool], tensor: Tensor) -> Tensor:
    """Other numbers instead of equal ones, for a tensor of this kind: random ones, or 0 and 1 in turn."""
    if tensor.numel() < 2 or not kind(tensor) or not bool((tensor == tensor.reshape(-1)[0]).all()):
        return tensor
    if not tensor.is_floating_point():
        return (torch.arange(tensor.numel(), device=tensor.device) % 2).reshape(tensor.shape).to(tensor.dtype)
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
    return noise.to(tensor.device, tensor.dtype)


def _difference(got: list[Tensor], want: list[Tensor]) -> str | None:
    if not want or len(got) != len(want):
        return f"it gives {len(got)} tensors, the graph {len(want)}"
    for index, (left, right) in enumerate(zip(got, want, strict=True)):
        if left.shape != right.shape:
            return f"output {index} is {tuple(left.shape)} instead of {tuple(right.shape)}"
        left, right = left.double(), right.double()
        tolerance = 1e-9 if want[index].dtype == torch.float64 else 1e-4
        finite = right[right.isfinite()].abs()
        room = tolerance * max(float(finite.max()) if len(finite) else 0.0, 1e-12)
        wrong = ~torch.isclose(left, right, rtol=0, atol=room, equal_nan=True)
        if bool(wrong.any()):
            return f"output {index} differs by {float((left - right)[wrong].abs().max()):.2g}"
    return None


def _run(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    model = copy_module(model).eval()  # a run may change buffers
    given, named = copy.deepcopy((tuple(args), kwargs))
    with torch.no_grad():
        outputs = model(*given, **named)
    return tensors_of(outputs)
