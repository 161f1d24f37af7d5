"""The front-end without example inputs: symbolic tracing with ``torch.nn`` modules as leaves."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import fx, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.leaves import is_stochastic_leaf
from sparsebit.graph.capture.mode import merge_modes
from sparsebit.graph.capture.module import CONTAINERS, CapturedModule, build_shell
from sparsebit.graph.capture.normalize import canonical_call
from sparsebit.graph.capture.placement import drop_dead_functions, place_mode_constants
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.capture.signature import CallSignature, CapturedCodeGen
from sparsebit.graph.capture.source import find_source, source_of_error
from sparsebit.graph.capture.structure import Constant, Leaf, Tree, flatten
from sparsebit.graph.passes.canonicalize_shape import canonicalize_shape


class QTracer(fx.Tracer):
    """A tracer that keeps ``torch.nn`` modules (but not ``Sequential``) and modules named by patterns whole.

    Args:
        skipped_module_names: fnmatch patterns on dotted module names; what matches becomes one node.

    Example:
        >>> tracer = QTracer(["head*"])
        >>> graph = tracer.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """

    def __init__(self, skipped_module_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.skipped_module_names = list(skipped_module_names)
        self._paths: list[str] = [""]

    def _probe(self, module_name: str, patterns: Iterable[str]) -> bool:
        """Whether a dotted module name matches one of the patterns."""
        return any(fnmatch(module_name, pattern) for pattern in patterns)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """``torch.nn`` modules other than ``Sequential``, and modules the user asked to skip."""
        from_torch = m.__module__.startswith("torch.nn") and not isinstance(m, nn.Sequential)
        return from_torch or self._probe(module_qualified_name, self.skipped_module_names)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """A node with the model's own place on it."""
        node = super().create_node(*args, **kwargs)
        node.meta["source"] = find_source()
        node.meta["module_path"] = self._paths[-1]
        return node

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace into a module or make it a node, remembering where we are."""
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        self._paths.append(path)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._paths.pop()


class _RequiredInputsTracer(QTracer):
    """What ``capture`` uses: optional arguments keep their defaults, DropPath-like modules stay whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Also modules that tracing would fix to one mode."""
        return super().is_leaf_module(m, module_qualified_name) or is_stochastic_leaf(m)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """A placeholder for every argument without a default; ``if mask is not None`` then goes the default's way."""
        args: list[Any] = [self.root]
        for name in required_inputs(inspect.signature(root_fn))[1:]:
            args.append(self.create_proxy("placeholder", name, (), {}))
        return root_fn, args


def required_inputs(signature: inspect.Signature) -> list[str]:
    """The names of the arguments that a call must give."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]


def trace_symbolically(model: nn.Module, *, skip: Sequence[str] = ()) -> CapturedModule:
    """Capture without inputs, in the mode the model is in; the other mode is traced too, to see what depends on it."""
    tracer = _RequiredInputsTracer(skip)
    graph = _trace(tracer, model)
    conflict = _compare_modes(model, graph, skip)
    signature = _flatten_output(graph, inspect.signature(model.forward))
    drop_dead_functions(graph)
    graph.set_codegen(CapturedCodeGen(signature))
    opaque = {id(m) for n, m in model.named_modules() if n and tracer.is_leaf_module(m, n) and type(m) not in CONTAINERS}
    shell = build_shell(model, opaque, {})
    for name in [name for name in vars(model) if name.startswith("_tensor_constant")]:
        shell.register_buffer(name, getattr(model, name).detach(), persistent=False)
        delattr(model, name)  # fx leaves constants of the trace on the user's model
    place_mode_constants(shell, graph)
    module = CapturedModule(shell, graph, type(model).__name__)
    module.capture_report, module._mode_conflict = CaptureReport(frontend="symbolic"), conflict
    canonicalize_shape(module)
    module.recompile()
    return module


def _trace(tracer: QTracer, model: nn.Module) -> fx.Graph:
    try:
        graph = tracer.trace(model)
    except Exception as error:
        place = source_of_error(error)
        raise CaptureError(
            f"{type(model).__name__} cannot be traced without running it: {error}",
            where=str(place) if place else None,
            hint="give example inputs, so that the model is recorded instead: sparsebit.capture(model, (x,)); or keep the "
            "module around this line whole with skip=['its.dotted.name']",
        ) from error
    _normalize(graph)
    return graph


def _compare_modes(model: nn.Module, graph: fx.Graph, skip: Sequence[str]) -> str | None:
    tracer = _RequiredInputsTracer(skip)
    insides = [m for n, m in model.named_modules() if not n or not tracer.is_leaf_module(m, n)]
    before, mode = [module.training for module in insides], model.training
    try:
        for module in insides:
            module.training = not mode
        other = _trace(tracer, model)
    except CaptureError as error:
        return str(error.where or error.message)
    finally:
        for module, training in zip(insides, before, strict=True):
            module.training = training
    return merge_modes(graph, other, mode)


def _flatten_output(graph: fx.Graph, parameters: inspect.Signature) -> CallSignature:
    output = next(iter(reversed(graph.nodes)))
    leaves, tree = flatten(output.args[0], "output", lambda item: isinstance(item, fx.Node))
    output.args = (tuple(leaves),)
    names = required_inputs(parameters)
    inputs: dict[str, Tree] = {
        name: Leaf(names.index(name), name) if name in names else _default(parameter)
        for name, parameter in parameters.parameters.items()
    }
    return CallSignature(parameters, inputs, tree)


def _default(parameter: inspect.Parameter) -> Tree:
    empty: Any = {} if parameter.kind is parameter.VAR_KEYWORD else ()
    value = empty if parameter.default is parameter.empty else parameter.default
    return Constant(value, parameter.name)


def _normalize(graph: fx.Graph) -> None:
    """Methods to functions, one spelling a meaning, attributes first, placeholders without defaults."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.args:
            node.args = ()
        if node.op not in ("call_method", "call_function"):
            continue
        target = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
        if target is torch.Tensor.size or target is getattr:
            node.op, node.target = "call_function", target
            continue
        name = getattr(target, "__name__", "")
        in_place = name.endswith("_") and not name.startswith("__") and node.op == "call_method"
        if in_place or "out" in node.kwargs or name == "setitem":
            node.meta["mutates"] = True
            node.op, node.target = "call_function", target
            continue
        node.op = "call_function"
        node.target, node.args, node.kwargs = canonical_call(target, node.args, dict(node.kwargs))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op == "get_attr" and node is not first:
            first.prepend(node)
