"""The graph module that capture returns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from typing import Any

import torch
from torch import fx, nn

from sparsebit.display import in_notebook
from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture.call.signature import CallSignature, CapturedCodeGen
from sparsebit.graph.capture.failure import explain_failure
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.codegen import fail_silently, make_safe
from sparsebit.graph.functional import ModeConstant
from sparsebit.graph.ops import find_op
from sparsebit.graph.passes.edit import STATE_HOOKS

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # rebuilt as such, so that indexing works

_RESERVED = (
    *("graph", "recompile", "_graph", "call_signature", "capture_report", "_mode_conflict", "_mode_flags"),
)


class CapturedModule(fx.GraphModule):
    """A captured model: an FX graph with the model's own signature, state and modes.

    It shares parameters, buffers and leaf modules with the model it came from, as ``torch.fx`` does;
    ``copy.deepcopy`` gives an independent one.
    """

    capture_report: CaptureReport
    _mode_conflict: str | None
    _mode_flags: dict[bool, dict[str, bool]]  # for a model with a train() of its own: the modes it sets

    _repr_html_ = in_notebook

    def __init__(self, root: nn.Module, graph: fx.Graph, class_name: str = "CapturedModule") -> None:
        # GraphModule would keep only what the graph mentions; the state dict must stay the original's
        super().__init__(nn.Module(), fx.Graph(), class_name)
        self._modules, self._parameters, self._buffers = root._modules, root._parameters, root._buffers
        self._non_persistent_buffers_set = set(root._non_persistent_buffers_set)
        self.training = root.training
        self._uncover_names()
        self.graph = graph
        self.capture_report = getattr(root, "capture_report", CaptureReport())
        self._mode_conflict = getattr(root, "_mode_conflict", None)
        self._mode_flags = {}

    def set_capture(
        self, report: CaptureReport, conflict: str | None, flags: dict[bool, dict[str, bool]]
    ) -> None:
        """Store the results of capturing: notes, why the mode cannot change, and the modes that ``train`` sets."""
        self.capture_report, self._mode_conflict, self._mode_flags = report, conflict, flags

    def _uncover_names(self) -> None:
        """Give a model's own ``code`` or ``meta`` precedence over that attribute of ``torch.fx.GraphModule``."""
        for name in {**self._modules, **self._parameters, **self._buffers}:
            if name == "meta":
                self.__dict__.pop("meta", None)
            if name in _RESERVED or name in self.__dict__:
                raise CaptureError(
                    f"the model has a part named {name!r}, which torch.fx reserves",
                    hint="rename that attribute",
                )
            if hasattr(fx.GraphModule, name) and not hasattr(nn.Module, name):
                setattr(type(self), name, property(functools.partial(_own_part, name)))

    @property
    def call_signature(self) -> CallSignature | None:
        """How the graph is called; None after the code generator was replaced."""
        codegen = self.graph._codegen
        return codegen.signature if isinstance(codegen, CapturedCodeGen) else None

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except Exception as error:
            explain_failure(self, error)
            raise

    def recompile(self) -> Any:
        """Generate the code of the current graph; activations work in place if nothing else reads their input."""
        make_safe(self.graph)
        _settle_in_place(self)
        code = super().recompile()
        fail_silently(self)  # _call_impl explains failures
        return code

    def train(self, mode: bool = True) -> CapturedModule:
        """Switch mode, or nothing at all; refused where the model's structure differs between the modes."""
        if mode != self.training and self._mode_conflict is not None:
            wanted, now = ("training", "evaluation") if mode else ("evaluation", "training")
            raise CaptureError(
                f"this graph cannot switch to {wanted} mode: the model runs different operations in it",
                where=self._mode_conflict,
                hint=f"call graph.keep_operations() first (qmodel.model.keep_operations() for a QuantModel) to "
                f"switch with the operations of {now} mode; or call model.{'train' if mode else 'eval'}() before "
                "sparsebit.capture",
            )
        notes = self.capture_report.of_kind("mode")
        if mode != self.training and notes:
            lines = "\n".join(f"  {note}" for note in notes[:8])
            text = f"in {'training' if mode else 'evaluation'} mode the captured graph fixed:\n{lines}"
            warnings.warn(SpecializationWarning(text), stacklevel=2)
        before = [(module, module.training) for module in self.modules()]
        try:
            super().train(mode)
        except BaseException:  # a train() of the user's refuses, or Ctrl-C
            for module, flag in before:
                module.training = flag
            raise
        for name, flag in self._mode_flags.get(mode, {}).items():
            try:
                module = self.get_submodule(name)
            except AttributeError:
                continue  # a pass has removed it
            module.training = flag
            for child in module.children():
                if isinstance(child, ModeConstant):
                    child.training = flag
        return self

    @property
    def mode_conflict(self) -> str | None:
        """Where the model runs different operations in the other mode, which this graph then refuses; or None."""
        return self._mode_conflict

    def keep_operations(self) -> None:
        """Let the graph switch mode although the model runs different operations in the other one.

        The graph keeps the operations it was captured with, and its outputs; only its layers follow the mode. This is
        how a model whose training has more to it (an auxiliary head, raw maps of a detector) is trained as it is used.
        """
        self._mode_conflict = None

    def _own_state(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_graph", "_code")}

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModule:
        state = {key: copy.deepcopy(value, memo) for key, value in self._own_state().items()}
        return _restore(self.__class__.__name__, state, copy.deepcopy(self.graph, memo))

    def __copy__(self) -> CapturedModule:
        state = self._own_state()
        for name in ("_modules", "_parameters", "_buffers"):
            state[name] = dict(state[name])
        return _restore(self.__class__.__name__, state, copy.deepcopy(self.graph))

    def __reduce__(self) -> Any:
        rows = flatten_graph(self.graph)
        return _restore_flat, (self.__class__.__name__, self._own_state(), rows, self.graph._codegen)


def inherited_conflict(model: nn.Module) -> str | None:
    """The mode conflict of a captured graph that is, or is part of, a model to be captured again."""
    graphs = (module for module in model.modules() if isinstance(module, CapturedModule))
    return next((graph.mode_conflict for graph in graphs if graph.mode_conflict is not None), None)


def _own_part(name: str, module: nn.Module) -> Any:
    return nn.Module.__getattr__(module, name)


def in_place_when_private(module: nn.Module) -> nn.Module:
    """A copy of an in-place activation whose ``inplace`` can change: in the graph it is a function of its input."""
    own = copy.copy(module)
    own.inplace = False  # type: ignore[assignment]
    own.__dict__["in_place_when_private"] = True
    return own


def _settle_in_place(gm: CapturedModule) -> None:
    """Let activations that were in place in the model overwrite their input, if it has no other reader.

    Saves the memory traffic the model saved. It is decided again whenever the graph changes.
    """
    readers: dict[str, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_module":
            readers.setdefault(str(node.target), []).append(node)
    for path, nodes in readers.items():
        module = gm.get_submodule(path)
        if module.__dict__.get("in_place_when_private"):
            module.inplace = all(reads_privately(gm, node) for node in nodes)  # type: ignore[assignment]


def reads_privately(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether nothing else reads an operator's first input, now or later, so that it may be overwritten or kept."""
    value = node.args[0] if node.args else None
    if not isinstance(value, fx.Node) or not value.op.startswith("call_") or set(value.users) != {node}:
        return False
    spec = find_op(gm, value)
    return spec is not None and not spec.view and not spec.random and not value.meta.get("mutates")


def _restore(name: str, state: dict[str, Any], graph: fx.Graph) -> CapturedModule:
    root = nn.Module()
    for key in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training"):
        root.__dict__[key] = state[key]
    module = CapturedModule(root, graph, name)
    for key, value in state.items():
        module.__dict__[key] = value
    module.recompile()
    return module


@dataclasses.dataclass(frozen=True)
class _Reference:
    """A node inside flattened arguments, by position."""

    index: int


def flatten_graph(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """The nodes of a graph as plain tuples, for pickling (a graph itself cannot be pickled)."""
    order = {node: index for index, node in enumerate(graph.nodes)}

    def refer(node: fx.Node) -> Any:
        return _Reference(order[node])

    rows = []
    for node in graph.nodes:
        args, kwargs = fx.node.map_arg(node.args, refer), fx.node.map_arg(node.kwargs, refer)
        rows.append((node.op, _pickled_target(node.target), node.name, args, kwargs, dict(node.meta)))
    return rows


def _pickled_target(target: Any) -> Any:
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return ("aten", str(target))
    if getattr(target, "__objclass__", None) is not None:  # a C method pickles as torch._C.TensorBase.x
        return ("tensor", target.__name__)
    return target


def _unpickled_target(target: Any) -> Any:
    if not isinstance(target, tuple):
        return target
    kind, name = target
    if kind == "tensor":
        return getattr(torch.Tensor, name)
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _restore_flat(
    name: str, state: dict[str, Any], rows: list[tuple[Any, ...]], codegen: Any
) -> CapturedModule:
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def resolve(value: Any) -> Any:
        return nodes[value.index] if isinstance(value, _Reference) else value

    for op, target, node_name, args, kwargs, meta in rows:
        given = fx.node.map_aggregate((args, kwargs), resolve)
        node = graph.create_node(op, _unpickled_target(target), *given, node_name)
        node.meta = meta
        nodes.append(node)
    graph.set_codegen(codegen)
    return _restore(name, state, graph)


class _StatefulShell(nn.Module):
    """Represents a module with more in its state dict than parameters and buffers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["original"] = module

    def get_extra_state(self) -> Any:
        """The extra state of the user's module."""
        return self.__dict__["original"].get_extra_state()

    def set_extra_state(self, state: Any) -> None:
        """Pass it to the user's module."""
        self.__dict__["original"].set_extra_state(state)


def build_shell(model: nn.Module, leaves: set[int], replaced: dict[str, nn.Module]) -> nn.Module:
    """A tree of empty modules with the model's own names, parameters, buffers and leaf modules.

    The user's containers are not reused, because passes replace their children; modules and parameters that are
    shared in the model are shared here.
    """
    memo: dict[int, nn.Module] = {}

    def visit(module: nn.Module, path: str) -> nn.Module:
        if id(module) in memo:
            return memo[id(module)]
        if path in replaced:
            return replaced[path]
        if id(module) in leaves:
            return module
        kind = type(module)
        saves_more = kind.get_extra_state is not nn.Module.get_extra_state
        shell = kind() if kind in CONTAINERS else _StatefulShell(module) if saves_more else nn.Module()
        memo[id(module)] = shell
        for table in STATE_HOOKS:
            getattr(shell, table).update(getattr(module, table))
        shell._parameters.update(module._parameters)
        shell._buffers.update(module._buffers)
        shell._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
        shell.training = module.training
        for name, child in module._modules.items():
            below = f"{path}.{name}" if path else name
            shell._modules[name] = visit(child, below) if child is not None else None
        return shell

    return visit(model, "")
