"""Run a graph node by node: watch values, replace them, stop and resume; no value outlives its last use."""

from __future__ import annotations

import contextlib
import copy
import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from sparsebit.errors import CaptureError, GraphError
from sparsebit.graph.capture.snapshot import undisturbed
from sparsebit.graph.effects import overwritten
from sparsebit.graph.ops import op_name
from sparsebit.graph.ops.spec import place
from sparsebit.graph.value import describe, real_tensors_in

WatchAll = Callable[[Node, Any], object]
Watch = WatchAll | Iterable[str | Node] | Mapping[str, Callable[[Any], object]] | None
Replace = Mapping[str, Any] | None


@dataclass
class RunState:
    """A run that was stopped: the values still needed, and what comes next.

    Parameters and buffers are not among the values: a resumed run reads them from the graph module, as they
    are by then.
    """

    next_node: str
    values: dict[str, Any]
    grad_enabled: bool | None = None  # what the graph switched gradients to, if it did
    regions: tuple[Any, ...] = ()  # autocast blocks the run was inside of, outermost first
    spent: bool = False  # a run that cannot be repeated went on from here


@dataclass
class RunResult:
    """What a run gave: the model's output, or the state where it stopped; and the watched values by name."""

    output: Any = None
    state: RunState | None = None
    watched: dict[str, Any] = field(default_factory=dict)


class Runner:
    """Runs a graph module node by node, with the same results as calling it.

    Every value is dropped after its last use, so memory is that of the live values, however long the graph.

    Example:
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()))
        >>> runner = Runner(gm)
        >>> runner.run(torch.tensor([-1.0, 0.0]), watch=["_0"]).watched
        {'_0': tensor([0., 0.])}
        >>> stopped = runner.run(torch.tensor([-1.0, 0.0]), until="_0").state
        >>> runner.run(state=stopped).output
        tensor([0.5000, 0.5000])
    """

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm

    def run(
        self,
        *args: Any,
        watch: Watch = None,
        replace: Replace = None,
        until: str | Node | None = None,
        state: RunState | None = None,
        **kwargs: Any,
    ) -> RunResult:
        """Run the graph on the model's own arguments, or go on from ``state``.

        Args:
            args, kwargs: as for the model. A model with a parameter called ``watch``, ``replace``, ``until``
                or ``state`` is run with ``run_call`` instead.
            watch: names of nodes, whose values are then in ``watched``; or a function of (node, value) that
                sees them all; or functions of the value by name. A watched value that a later node would
                overwrite is copied.
            replace: by node name, a function to call instead of the node's own, with the same arguments; or,
                if it is not callable, the value to take instead of running the node.
            until: stop after this node and return the state.
            state: where to go on from; ``args`` and ``kwargs`` must then be empty.
        """
        started = self._start(args, kwargs, state, _Plan(self.gm, watch, replace, until))
        del args, kwargs, state  # the caller may have let go of the tensors in them
        return self._finish(started)

    def run_call(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        watch: Watch = None,
        replace: Replace = None,
        until: str | Node | None = None,
        state: RunState | None = None,
    ) -> RunResult:
        """As ``run``, with the model's arguments in a tuple and a dict."""
        started = self._start(tuple(args), dict(kwargs or {}), state, _Plan(self.gm, watch, replace, until))
        del args, kwargs, state
        return self._finish(started)

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], state: RunState | None, plan: _Plan
    ) -> _Started:
        if state is None:
            inputs = flatten_call(self.gm, args, kwargs)
            return _Started(plan, 0, dict(zip(plan.placeholders, inputs, strict=True)), _Regions())
        if args or kwargs:
            raise GraphError(
                "a stopped run goes on without arguments", got=f"{len(args) + len(kwargs)} of them"
            )
        regions = _Regions(list(state.regions), state.grad_enabled)
        return _Started(plan, plan.position(state.next_node), plan.resume(state), regions)

    def _finish(self, started: _Started) -> RunResult:
        plan, values = started.plan, started.values
        with started.regions as regions:
            for node in plan.nodes[started.position :]:
                if node.op == "output":
                    flat = map_arg(node.args[0], values.__getitem__)
                    plan.saw(node, flat)
                    return RunResult(self.gm.graph.process_outputs(flat), None, plan.watched)
                values[node] = self._compute(node, values, plan)
                regions.follow(node, values[node])
                plan.saw(node, values[node])
                for dead in plan.last_used.get(node, ()):
                    values.pop(dead, None)
                if node is plan.until:
                    return RunResult(None, plan.stop(values, regions), plan.watched)
        raise GraphError("the graph has no output node", hint="add one with graph.output(...)")

    def _compute(self, node: Node, values: Mapping[Node, Any], plan: _Plan) -> Any:
        """The value of one node; in a function of its own so that no local variable outlives the call."""
        function: Callable[..., Any] | None = None
        if node.name in plan.replace:
            instead = plan.replace[node.name]
            if isinstance(instead, Tensor) or not callable(instead):
                return instead
            function = instead
        if node.op == "placeholder":
            return values[node] if function is None else function(values[node])
        args = map_arg(node.args, values.__getitem__)
        kwargs = map_arg(node.kwargs, values.__getitem__)
        try:
            return (function or self._function_of(node))(*args, **kwargs)
        except Exception as error:
            raise self._failure(node, args, kwargs, error) from error

    def _function_of(self, node: Node) -> Callable[..., Any]:
        target: Any = node.target
        if node.op == "call_module":
            module: Callable[..., Any] = self.gm.get_submodule(target)
            return module
        if node.op == "call_method":
            return lambda owner, *args, **kwargs: getattr(owner, target)(*args, **kwargs)
        if node.op == "get_attr":
            return lambda: attrgetter(target)(self.gm)
        function: Callable[..., Any] = target
        return function

    def _failure(self, node: Node, args: Any, kwargs: Any, error: Exception) -> GraphError:
        given = ", ".join(
            [*map(_spell, args), *(f"{name}={_spell(value)}" for name, value in kwargs.items())]
        )
        operator = op_name(self.gm, node) or str(getattr(node.target, "__name__", node.target))
        text = str(error).strip() or type(error).__name__
        return GraphError(
            f"{operator} failed: {type(error).__name__}: {text}",
            where=place(node),
            got=f"{node.name}({given})",
            hint="compare these inputs with those the graph was captured with; show.table lists every shape",
        )


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


def annotate(gm: GraphModule, *args: Any, **kwargs: Any) -> int:
    """Run a graph once and write down shape and dtype of every value in ``meta["value"]``; returns how many.

    Only nodes without one are filled. Buffers that the run changes are put back.

    Example:
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
        >>> annotate(gm, torch.zeros(2, 3)), [node.meta["value"].shape for node in gm.graph.nodes][0]
        (3, (2, 3))
    """
    filled = 0

    def note(node: Node, value: Any) -> None:
        nonlocal filled
        if "value" not in node.meta:
            node.meta["value"] = describe(value)
            filled += 1

    with undisturbed(gm, [*gm.parameters(), *gm.buffers()]), torch.no_grad():
        Runner(gm).run_call(args, kwargs, watch=note)
    return filled


class _Plan:
    """Everything about one run that is known before it starts."""

    def __init__(self, gm: GraphModule, watch: Watch, replace: Replace, until: str | Node | None) -> None:
        self.gm = gm
        self.nodes = list(gm.graph.nodes)
        self.by_name = {node.name: node for node in self.nodes}
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.replace = {self._find(name).name: value for name, value in (replace or {}).items()}
        self.until = self._find(until) if until is not None else None
        self.watched: dict[str, Any] = {}
        self._tell_all: WatchAll | None = watch if callable(watch) else None
        self._tell: dict[str, Callable[[Any], object]] = {}
        self._keep: set[str] = set()
        if isinstance(watch, str | Node):
            watch = [watch]
        if isinstance(watch, Mapping):
            self._tell = {self._find(name).name: told for name, told in watch.items()}
        elif watch is not None and not callable(watch):
            self._keep = {self._find(name).name for name in watch}
        self._changing: set[Node] | None = None
        self.last_used = last_uses(gm.graph)

    def _find(self, name: str | Node) -> Node:
        name = name.name if isinstance(name, Node) else name
        if name not in self.by_name:
            near = difflib.get_close_matches(name, self.by_name, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "show.table lists the nodes"
            raise GraphError(f"the graph has no node {name!r}", hint=hint)
        found: Node = self.by_name[name]
        return found

    def position(self, name: str) -> int:
        return self.nodes.index(self._find(name))

    @property
    def changing(self) -> set[Node]:
        if self._changing is None:
            self._changing = overwritten(self.gm)
        return self._changing

    def saw(self, node: Node, value: Any) -> None:
        """Show a value to the watcher."""
        if self._tell_all is not None:
            self._tell_all(node, value)
        if node.name in self._tell:
            self._tell[node.name](value)
        if node.name in self._keep:
            self.watched[node.name] = _copied(value) if node in self.changing else value

    def stop(self, values: Mapping[Node, Any], regions: _Regions) -> RunState:
        assert self.until is not None
        following = self.until.next
        kept = {n.name: value for n, value in values.items() if n.op != "get_attr" or n.name in self.replace}
        return RunState(following.name, kept, regions.grad_enabled, tuple(regions.open))

    def resume(self, state: RunState) -> dict[Node, Any]:
        """The values to go on with; the state's own must survive nodes that overwrite them."""
        if state.spent:
            raise GraphError(
                "this state was resumed before, and that run overwrote its values in place",
                hint="stop a fresh run for each resume, or run under torch.no_grad()",
            )
        values = {self._find(name): value for name, value in state.values.items()}
        held = {_memory(tensor) for tensor in (*self.gm.parameters(), *self.gm.buffers())}
        shared = {
            node: value
            for node, value in values.items()
            # what is written into the model's own state has to arrive there
            if node in self.changing and not any(_memory(tensor) in held for tensor in real_tensors_in(value))
        }
        if any(
            tensor.requires_grad and not tensor.is_leaf for tensor in real_tensors_in(list(shared.values()))
        ):
            state.spent = True  # a copy would leave the gradient behind
        else:
            # one copy of all, so that views stay views of one another
            values |= copy.deepcopy(shared, {id(node): node for node in shared})
        for node in self.nodes[: self.position(state.next_node)]:
            if node.op == "get_attr" and node not in values:
                values[node] = attrgetter(str(node.target))(self.gm)
        return values


class _Regions:
    """Keeps what the graph switches in the thread (autocast, gradients) inside the run."""

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


class _Started(NamedTuple):
    """A run before its next node; the only holder of the values."""

    plan: _Plan
    position: int
    values: dict[Node, Any]
    regions: _Regions


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copied(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, Tensor.clone, value)


def _spell(value: Any) -> str:
    """An argument in an error message: what it is, not what is in it."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(_spell, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    text = repr(value)
    return text if len(text) <= 40 else f"{type(value).__name__}"


@contextlib.contextmanager
def evaluating(gm: GraphModule, *, if_possible: bool = False) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in the mode it was in, frozen ones included.

    With ``if_possible`` a graph that cannot switch stays in the only mode that it was recorded in.
    """
    before, was = {module: module.training for module in gm.modules()}, gm.training
    with contextlib.suppress(*([CaptureError] if if_possible else [])):
        gm.eval()
    try:
        yield
    finally:
        for module in gm.modules():
            module.training = before.get(module, was)
