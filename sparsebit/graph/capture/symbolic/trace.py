"""The front-end without example inputs: symbolic tracing with ``torch.nn`` modules as leaves."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, fx, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.signature import CallSignature, CapturedCodeGen
from sparsebit.graph.capture.call.structure import Constant, Leaf, Tree, flatten
from sparsebit.graph.capture.leaves import is_stochastic_leaf
from sparsebit.graph.capture.modes import merge_modes
from sparsebit.graph.capture.module import CONTAINERS, CapturedModule, build_shell
from sparsebit.graph.capture.normalize import canonical_call
from sparsebit.graph.capture.placement import drop_dead_functions, place_mode_constants
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.capture.snapshot import overridden_modes, undisturbed
from sparsebit.graph.capture.source import find_source, source_of_error
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
        parameters = inspect.signature(root_fn).parameters
        names = required_inputs(inspect.signature(root_fn))[1:]
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in names]
        keywords = [parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in names]

        def call(root: nn.Module, *inputs: Any) -> Any:
            positional = [proxy for proxy, keyword in zip(inputs, keywords, strict=True) if not keyword]
            named = {n: p for n, p, keyword in zip(names, inputs, keywords, strict=True) if keyword}
            return root_fn(root, *positional, **named)

        return call, [self.root, *proxies]


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
    graph, constants = _trace(tracer, model)
    conflict = _compare_modes(model, graph, constants, skip)
    signature = _flatten_output(graph, inspect.signature(model.forward))
    drop_dead_functions(graph)
    graph.set_codegen(CapturedCodeGen(signature))
    opaque = {
        id(m)
        for n, m in model.named_modules()
        if n and tracer.is_leaf_module(m, n) and type(m) not in CONTAINERS
    }
    shell = build_shell(model, opaque, {})
    for name, tensor in constants.items():
        shell.register_buffer(name, tensor.detach(), persistent=False)
    _keep_plain_tensors(model, shell, graph)
    place_mode_constants(shell, graph)
    module = CapturedModule(shell, graph, type(model).__name__)
    module.capture_report, module._mode_conflict = CaptureReport(frontend="symbolic"), conflict
    module._mode_flags = overridden_modes(model)
    canonicalize_shape(module)
    module.recompile()
    return module


@contextlib.contextmanager
def _watching() -> Iterator[list[str]]:
    """Collect what the model does to the state of torch while it is traced: a symbolic graph has no trace of it."""
    unseen: list[str] = []
    set_grad, enter = torch.set_grad_enabled.__init__, torch.autocast.__enter__

    def watch_grad(self: Any, mode: bool) -> None:
        unseen.append("switches gradients on or off")
        set_grad(self, mode)

    def watch_autocast(self: Any) -> Any:
        unseen.append("has an autocast block")
        return enter(self)  # type: ignore[no-untyped-call]

    torch.set_grad_enabled.__init__ = watch_grad  # type: ignore[method-assign]
    torch.autocast.__enter__ = watch_autocast  # type: ignore[method-assign]
    try:
        yield unseen
    finally:
        torch.set_grad_enabled.__init__ = set_grad  # type: ignore[method-assign]
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def _keep_plain_tensors(model: nn.Module, shell: nn.Module, graph: fx.Graph) -> None:
    """Tensors that the model holds as plain attributes become buffers outside the state dict."""
    for node in graph.nodes:
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            owner = shell.get_submodule(path)
            if not hasattr(owner, name):
                owner.register_buffer(
                    name, getattr(model.get_submodule(path), name).detach(), persistent=False
                )


def _trace(tracer: QTracer, model: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph, and the tensors that fx found on its way and left on the model for the time of the trace."""
    try:
        with undisturbed(model) as buffers, _watching() as unseen:
            before = torch.get_rng_state()
            graph = tracer.trace(model)
            changed = buffers.changed()
            if not torch.equal(before, torch.get_rng_state()):
                unseen.append("draws random numbers")
            constants = {
                name: value for name, value in vars(model).items() if name.startswith("_tensor_constant")
            }
    except Exception as error:
        place = source_of_error(error)
        raise CaptureError(
            f"{type(model).__name__} cannot be traced without running it: {error}",
            where=str(place) if place else None,
            hint="give example inputs, so that the model is recorded instead: sparsebit.capture(model, (x,)); or keep "
            "the module around this line whole with skip=['its.dotted.name']",
        ) from error
    if unseen:
        raise CaptureError(
            f"{type(model).__name__} {unseen[0]}, which tracing without inputs cannot see",
            hint="give example inputs, so that the model is recorded instead: sparsebit.capture(model, (x,))",
        )
    if changed is not None:
        raise CaptureError(
            f"{type(model).__name__} writes to its buffer {changed!r}, which tracing without inputs cannot see",
            hint="give example inputs, so that the model is recorded instead: sparsebit.capture(model, (x,))",
        )
    _normalize(graph)
    return graph, constants


def _compare_modes(
    model: nn.Module, graph: fx.Graph, constants: dict[str, Tensor], skip: Sequence[str]
) -> str | None:
    tracer = _RequiredInputsTracer(skip)
    insides = [m for n, m in model.named_modules() if not n or not tracer.is_leaf_module(m, n)]
    before = [module.training for module in insides]
    try:
        for module in insides:
            module.training = not module.training
        other, others = _trace(tracer, model)
    except CaptureError as error:
        return str(error.where or error.message)
    finally:
        for module, training in zip(insides, before, strict=True):
            module.training = training
    if any(not torch.equal(tensor, constants[name]) for name, tensor in others.items() if name in constants):
        return "a constant tensor of the model differs between the modes"
    modes = {name: module.training for name, module in model.named_modules(remove_duplicate=False)}
    return merge_modes(graph, other, modes.__getitem__)


def _flatten_output(graph: fx.Graph, parameters: inspect.Signature) -> CallSignature:
    output = next(iter(reversed(graph.nodes)))
    leaves, tree = flatten(_thaw(output.args[0]), "output", lambda item: isinstance(item, fx.Node))
    output.args = (tuple(leaves),)
    names = required_inputs(parameters)
    inputs: dict[str, Tree] = {
        name: Leaf(names.index(name), name, anything=True) if name in names else _default(parameter)
        for name, parameter in parameters.parameters.items()
    }
    return CallSignature(parameters, inputs, tree)


def _thaw(value: Any) -> Any:
    """Plain lists and dicts in place of the immutable ones that fx keeps arguments in."""
    if isinstance(value, list):
        return [_thaw(item) for item in value]
    if isinstance(value, dict):
        return {key: _thaw(item) for key, item in value.items()}
    return tuple(_thaw(item) for item in value) if type(value) is tuple else value


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
        in_place = name.endswith("_") and not name.startswith("__")
        if in_place or node.kwargs.get("inplace") is True or "out" in node.kwargs or name == "setitem":
            node.meta["mutates"] = True
            node.op, node.target = "call_function", target
            continue
        node.op = "call_function"
        node.target, node.args, node.kwargs = canonical_call(target, node.args, dict(node.kwargs))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op == "get_attr" and node is not first:
            first.prepend(node)
