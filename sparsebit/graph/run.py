"""Run a graph node by node: watch values, replace functions, stop and resume; values are freed after their last use."""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from sparsebit.errors import CaptureError, GraphError, SparsebitError
from sparsebit.graph.effects import overwritten
from sparsebit.graph.exclusive import without_warnings
from sparsebit.graph.ops import op_name
from sparsebit.graph.ops.spec import place
from sparsebit.graph.value import real_tensors_in

Watch = Callable[[Node, Any], object]
Replace = Mapping[str, Callable[..., Any]]


@dataclass
class RunState:
    """A stopped run: the values that are still needed, and the next node.

    Parameters and buffers are not among the values: a resumed run reads their current values from the graph module.
    """

    next_node: str
    values: dict[str, Any]
    grad_enabled: bool | None = None  # what the graph switched gradients to, if it did
    regions: tuple[Any, ...] = ()  # autocast blocks the run was inside of, outermost first
    spent: bool = False  # a run that cannot be repeated was resumed from here


def run_graph(
    gm: GraphModule,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    watch: Watch | None = None,
    replace: Replace | None = None,
    until: str | None = None,
    state: RunState | None = None,
) -> Any:
    """Run a graph module node by node, with the same result as calling it.

    Every value is dropped after its last use, so memory holds only live values, in graphs of any length.

    Args:
        gm: any graph module.
        args, kwargs: as for the model.
        watch: sees every node and its value, the output too. A later node may overwrite the value.
        replace: by node name, a function to call instead of the node's own, with the same arguments; for an input, a
            function of its value.
        until: the name of a node to stop after; the result is then the ``RunState`` there.
        state: where to resume, instead of ``args`` and ``kwargs``.

    Example:
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()))
        >>> stopped = run_graph(gm, (torch.tensor([-1.0, 0.0]),), until="_0")
        >>> stopped.values, run_graph(gm, state=stopped)
        ({'_0': tensor([0., 0.])}, tensor([0.5000, 0.5000]))
    """
    replace = replace or {}
    _require_names(gm, [*replace, *([] if until is None else [until])])
    nodes, dead_after, interpreter = (
        list(gm.graph.nodes),
        last_uses(gm.graph),
        Interpreter(gm, garbage_collect_values=False),
    )
    if state is None:
        placeholders = [node for node in nodes if node.op == "placeholder"]
        values = dict(zip(placeholders, flatten_call(gm, tuple(args), dict(kwargs or {})), strict=True))
        regions = _Regions()
    elif args or kwargs:
        raise GraphError("a stopped run is resumed without arguments")
    else:
        values, regions = _resume(gm, state), _Regions(list(state.regions), state.grad_enabled)
        nodes = nodes[[node.name for node in nodes].index(state.next_node) :]
    del args, kwargs, state  # the caller may have released their tensors
    with regions:
        for node in nodes:
            if node.op == "output":
                flat = map_arg(node.args[0], values.__getitem__)
                if watch is not None:
                    watch(node, flat)
                return gm.graph.process_outputs(flat)
            values[node] = _compute(interpreter, node, values, replace.get(node.name))
            regions.follow(node, values[node])
            if watch is not None:
                watch(node, values[node])
            for dead in dead_after.get(node, ()):
                values.pop(dead, None)
            if node.name == until:
                kept = {n.name: v for n, v in values.items() if n.op != "get_attr" or n.name in replace}
                return RunState(node.next.name, kept, regions.grad_enabled, tuple(regions.open))
    raise GraphError("the graph has no output node", hint="add one with graph.output(...)")


def _require_names(gm: GraphModule, names: Sequence[str]) -> None:
    known = {node.name for node in gm.graph.nodes}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "show.table lists the nodes"
            raise GraphError(f"the graph has no node {name!r}", hint=hint)


def _compute(
    interpreter: Interpreter, node: Node, values: Mapping[Node, Any], instead: Callable[..., Any] | None
) -> Any:
    """The value of one node; in a separate function so that no local variable outlives the call."""
    if node.op == "placeholder":
        return values[node] if instead is None else instead(values[node])
    args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    try:
        if instead is not None:
            return instead(*args, **kwargs)
        return getattr(interpreter, node.op)(node.target, args, kwargs)
    except (SparsebitError, torch.OutOfMemoryError):
        raise  # the one explains itself, the other is handled by its type
    except Exception as error:
        gm = interpreter.module
        assert isinstance(gm, GraphModule)
        given = [*map(_spell, args), *(f"{name}={_spell(value)}" for name, value in kwargs.items())]
        operator = op_name(gm, node) or str(getattr(node.target, "__name__", node.target))
        raise GraphError(
            f"{operator} failed: {type(error).__name__}: {str(error).strip() or type(error).__name__}",
            where=place(node),
            got=f"{node.name}({', '.join(given)})",
            hint="compare these inputs with those the graph was captured with; show.table lists every shape",
        ) from error


def _resume(gm: GraphModule, state: RunState) -> dict[Node, Any]:
    """The values to continue with; those of the state must not be changed by nodes that overwrite them."""
    if state.spent:
        raise GraphError(
            "this state was resumed before, and that run overwrote its values in place",
            hint="stop a fresh run for each resume, or run under torch.no_grad()",
        )
    by_name = {node.name: node for node in gm.graph.nodes}
    values = {by_name[name]: value for name, value in state.values.items()}
    changing = overwritten(gm)
    held = {_memory(tensor) for tensor in (*gm.parameters(), *gm.buffers())}
    shared = {
        node: value
        for node, value in values.items()
        # writes to the model's own state must reach it
        if node in changing and not any(_memory(tensor) in held for tensor in real_tensors_in(value))
    }
    if any(tensor.requires_grad and not tensor.is_leaf for tensor in real_tensors_in(list(shared.values()))):
        state.spent = True  # a copy would lose the gradient
    else:
        # one copy of all, so that views stay views of one another
        values |= copy.deepcopy(shared, {id(node): node for node in shared})
    for node in gm.graph.nodes:
        if node.name == state.next_node:
            break
        if node.op == "get_attr" and node not in values:
            values[node] = attrgetter(str(node.target))(gm)
    return values


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """For each node, the values that are not needed once it has run."""
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        last[node] = node
        for source in node.all_input_nodes:
            last[source] = node
    dead: dict[Node, list[Node]] = {}
    for node, user in last.items():
        dead.setdefault(user, []).append(node)
    return dead


def flatten_call(gm: GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The values of a graph's placeholders, in order, for a call of the graph module."""
    codegen = gm.graph._codegen
    flatten_inputs = getattr(codegen, "flatten_inputs", None)
    if flatten_inputs is not None:
        return list(flatten_inputs(args, kwargs))
    signature = inspect.signature(gm.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise GraphError(
            f"the call does not fit the graph: {error}", expected=f"forward{signature}"
        ) from error
    bound.apply_defaults()
    flat = getattr(codegen, "pytree_info", None) is not None  # torch.fx has flattened the arguments
    return list(gm.graph.process_inputs(*bound.args) if flat else bound.arguments.values())


class _Regions:
    """Restores thread state that the graph switches (autocast, gradients) after the run."""

    def __init__(self, regions: Sequence[Any] = (), grad_enabled: bool | None = None) -> None:
        self.open = list(regions)
        self.grad_enabled = grad_enabled
        self._before = torch.is_grad_enabled()

    def __enter__(self) -> _Regions:
        for region in self.open:
            region.__enter__()
        if self.grad_enabled is not None:
            torch.set_grad_enabled(self.grad_enabled)
        return self

    def follow(self, node: Node, value: Any) -> None:
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            self.open.append(value)
        elif name == "_exit_autocast" and self.open:
            self.open.pop()
        elif name in ("_set_grad_enabled", "set_grad_enabled"):
            self.grad_enabled = torch.is_grad_enabled()

    def __exit__(self, *error: object) -> None:
        for region in reversed(self.open):
            region.__exit__(None, None, None)
        torch.set_grad_enabled(self._before)


def _spell(value: Any) -> str:
    """An argument in an error message: its type and shape, not its contents."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(_spell, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}"


@contextlib.contextmanager
def evaluating(model: object, *, if_possible: bool = False) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in its previous mode, frozen ones included.

    Objects that are not modules, such as functions, have no mode. With ``if_possible`` a graph that cannot switch stays
    in the only mode that it was recorded in.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    before, was = {module: module.training for module in model.modules()}, model.training
    try:
        with contextlib.suppress(*([CaptureError] if if_possible else [])):
            model.eval()
        yield
    finally:
        if model.training != was:  # a class's own ``train`` may do more than switch, such as merging adapters
            with without_warnings():
                model.train(was)
        for module in model.modules():
            module.training = before.get(module, was)


class SavedState:
    """A copy of a model's buffers, and optionally its parameters, that can be restored any number of times."""

    def __init__(self, model: nn.Module, *, parameters: bool) -> None:
        tensors = [*model.buffers(), *(model.parameters() if parameters else ())]
        held = [tensor for tensor in tensors if tensor.layout is torch.strided and not tensor.is_meta]
        self._kept = [(tensor, tensor.detach().clone()) for tensor in held]

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Restore, after the block, whatever a run inside it writes."""
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, before in self._kept:
                    # By value: kernels write statistics without counting it.
                    if not torch.equal(tensor, before):
                        tensor.copy_(before)


@contextlib.contextmanager
def requiring_grad(tensors: Iterable[Tensor], on: bool) -> Iterator[None]:
    """Set ``requires_grad`` of these tensors inside the block, and restore it afterwards."""
    before = [(tensor, tensor.requires_grad) for tensor in tensors]
    try:
        for tensor, _ in before:
            tensor.requires_grad_(on)
        yield
    finally:
        for tensor, was in before:
            tensor.requires_grad_(was)
