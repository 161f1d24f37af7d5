"""The front-end without example inputs: symbolic tracing with ``torch.nn`` modules as leaves."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.signature import CallSignature
from sparsebit.graph.capture.call.structure import Constant, Leaf, Tree, flatten
from sparsebit.graph.capture.modes import flipped_modes, merge_modes
from sparsebit.graph.capture.module import CONTAINERS, CapturedModule, build_shell
from sparsebit.graph.capture.normalize import canonical_call
from sparsebit.graph.capture.placement import assemble
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.capture.snapshot import overridden_modes, training_flags, undisturbed
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.capture.symbolic.tracer import VARIABLE, InputsTracer, variable_parameters
from sparsebit.graph.exclusive import exclusively, in_this_thread, replaced
from sparsebit.graph.functional import invoke
from sparsebit.graph.passes.canonicalize_shape import canonicalize_shape

_SHAPE_FUNCTIONS = (operator.add, operator.mul)  # concatenating or repeating a shape gives a shape


def trace_symbolically(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    skip: Sequence[str] = (),
) -> CapturedModule:
    """Capture without running the model, in the mode it is in; the other mode is traced to see what depends on it.

    Arguments without a default are inputs; the others keep their defaults, so that ``if mask is not None`` takes the
    default's branch. If the model cannot be traced like this, optional arguments become inputs too, as in plain
    ``torch.fx``. An example call, if given, decides instead.
    """
    tracer, graph, constants = _trace_with_inputs(model, _example(model, args, kwargs or {}), skip)
    conflict = _compare_modes(model, graph, constants, tracer)
    signature = _flatten_output(graph, inspect.signature(model.forward), tracer)
    named = [(name, m) for name, m in model.named_modules() if name and type(m) not in CONTAINERS]
    shell = build_shell(model, {id(m) for name, m in named if tracer.is_leaf_module(m, name)}, {})
    _keep_plain_tensors(model, shell, graph, constants)
    report, modes = CaptureReport(frontend="symbolic"), overridden_modes(model)
    module = assemble(
        shell,
        graph,
        signature,
        type(model).__name__,
        report,
        constants=constants,
        conflict=conflict,
        modes=modes,
    )
    canonicalize_shape(module)
    module.recompile()
    return module


@exclusively
def _watching() -> Iterator[list[str]]:
    """Collect changes to the state of torch while the model is traced: a symbolic graph does not contain them."""
    unseen: list[str] = []
    ours = in_this_thread()
    set_grad, enter = torch.set_grad_enabled.__init__, torch.autocast.__enter__

    def watch_grad(self: Any, mode: bool) -> None:
        if ours():
            unseen.append("switches gradients on or off")
        set_grad(self, mode)

    def watch_autocast(self: Any) -> Any:
        if ours():
            unseen.append("has an autocast block")
        return enter(self)  # type: ignore[no-untyped-call]

    with replaced(
        (torch.set_grad_enabled, "__init__", watch_grad), (torch.autocast, "__enter__", watch_autocast)
    ):
        yield unseen


class _WatchRandom(TorchDispatchMode):
    """Collects operators that draw random numbers in this thread."""

    def __init__(self, unseen: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unseen = unseen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.unseen.append("draws random numbers")
        return func(*args, **(kwargs or {}))


def _keep_plain_tensors(
    model: nn.Module, shell: nn.Module, graph: fx.Graph, constants: dict[str, Tensor]
) -> None:
    """Tensors that the model holds as plain attributes become buffers outside the state dict."""
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in constants:
            path, _, name = str(node.target).rpartition(".")
            owner = shell.get_submodule(path)
            if not hasattr(owner, name):
                tensor = getattr(model.get_submodule(path), name)
                owner.register_buffer(name, tensor.detach(), persistent=False)


def _example(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an example call by name; none if there is none, or if it does not fit."""
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return {}
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    return {} if any(kinds[name] in VARIABLE for name in bound.arguments) else dict(bound.arguments)


def _trace_with_inputs(
    model: nn.Module, example: Mapping[str, Any], skip: Sequence[str]
) -> tuple[InputsTracer, fx.Graph, dict[str, Tensor]]:
    """Trace with the first choice of inputs that can be traced."""
    refusals: list[tuple[bool, CaptureError]] = []
    variable = [] if example or "forward" in vars(model) else variable_parameters(type(model).forward)
    for inputs, constants in _choices(inspect.signature(model.forward), example, variable):
        tracer = InputsTracer(inputs, constants, skip)
        try:
            return tracer, *_trace(tracer, model)
        except CaptureError as error:
            refusals.append((not inputs, error))
    raise min(refusals, key=operator.itemgetter(0))[1]  # the first one, of those with inputs if there are any


def _choices(
    signature: inspect.Signature, example: Mapping[str, Any], variable: Sequence[str]
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Choices of inputs, and the values of other arguments: the required ones, the optional ones too, all of them.

    Last come those that ``*args`` and ``**kwargs`` collect (``variable``), each as one input.
    """
    parameters = {name: p for name, p in signature.parameters.items() if p.kind not in VARIABLE}
    if example:
        tensors = [
            name for name, value in example.items() if not isinstance(value, str | bool | int | float | None)
        ]
        yield tensors, {name: value for name, value in example.items() if name not in tensors}
        return
    required = [name for name, p in parameters.items() if p.default is p.empty]
    yield required, {}
    optional = [name for name, p in parameters.items() if p.default is p.empty or p.default is None]
    if optional != required:
        yield optional, {}
    if list(parameters) != optional:
        yield list(parameters), {}
    if variable:
        yield [name for name in signature.parameters if name in parameters or name in variable], {}


def _trace(tracer: InputsTracer, model: nn.Module) -> tuple[fx.Graph, dict[str, Tensor]]:
    """The graph, and the tensors that fx attached to the model during the trace."""
    try:
        with undisturbed(model) as buffers, _watching() as unseen:
            with _WatchRandom(unseen):
                graph = tracer.trace(model)
            changed = buffers.changed()
            constants = {
                name: value for name, value in vars(model).items() if name.startswith("_tensor_constant")
            }
            if any(name.startswith("_torchbind_obj") for name in vars(model)):
                unseen.append("calls a method of a TorchBind object")
    except Exception as error:
        place = source_of_error(error)
        raise CaptureError(
            f"{type(model).__name__} cannot be traced without running it: {error}",
            where=str(place) if place else None,
            hint="pass example inputs, so that the model is recorded instead: sparsebit.capture(model, (x,)), "
            "QuantModel(model, config, example_inputs=(x,)); or keep the module around this line as one node: "
            "skip=['its.dotted.name'], SKIP_TRACE_MODULES in a config",
        ) from error
    absent = next(
        (node for node in graph.nodes if node.op == "call_module" and node.args[:1] == (None,)), None
    )
    if absent is not None:
        raise CaptureError(
            f"{absent.target!r} of {type(model).__name__} would be called with None, the default of an argument",
            where=str(absent.meta["source"]),
            hint="pass example inputs, so that the arguments in use are known: sparsebit.capture(model, (x,))",
        )
    if changed is not None:
        unseen.append(f"writes to its buffer {changed!r}")
    if unseen:
        raise CaptureError(
            f"{type(model).__name__} {unseen[0]}, which tracing without inputs cannot see",
            hint="pass example inputs, so that the model is recorded instead: sparsebit.capture(model, (x,))",
        )
    _normalize(graph)
    return graph, constants


def _compare_modes(
    model: nn.Module, graph: fx.Graph, constants: dict[str, Tensor], tracer: InputsTracer
) -> str | None:
    tracer = InputsTracer(tracer.inputs, tracer.constants, tracer.skipped_module_names)
    insides = [m for n, m in model.named_modules() if not n or not tracer.is_leaf_module(m, n)]
    try:
        with flipped_modes(insides):
            other, others = _trace(tracer, model)
    except CaptureError as error:
        return str(error.where or error.message)
    if any(not torch.equal(tensor, constants[name]) for name, tensor in others.items() if name in constants):
        return "a constant tensor of the model differs between the modes"
    return merge_modes(graph, other, training_flags(model).__getitem__)


def _flatten_output(graph: fx.Graph, parameters: inspect.Signature, tracer: InputsTracer) -> CallSignature:
    output = next(iter(reversed(graph.nodes)))
    leaves, tree = flatten(_thaw(output.args[0]), "output", lambda item: isinstance(item, fx.Node))
    output.args = (tuple(leaves),)
    used = {str(node.target) for node in graph.nodes if node.op == "placeholder" and node.users}
    names = list(tracer.inputs)
    inputs: dict[str, Tree] = {
        name: Leaf(names.index(name), name, anything=True, given=name in used)
        if name in names
        else Constant(tracer.constants.get(name, _default(parameter)), name)
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


def _default(parameter: inspect.Parameter) -> Any:
    empty: Any = {} if parameter.kind is parameter.VAR_KEYWORD else ()
    return empty if parameter.default is parameter.empty else parameter.default


def _normalize(graph: fx.Graph) -> None:
    """Methods become functions with one spelling per meaning, attributes come first, placeholders have no defaults."""
    shapes: set[fx.Node] = set()  # nodes that give a torch.Size

    def is_shape(value: Any) -> bool:
        return isinstance(value, tuple | list) or (isinstance(value, fx.Node) and value in shapes)

    for node in list(graph.nodes):
        if node.op == "placeholder" and node.args:
            node.args = ()
        if _gives_shape(node, is_shape):
            shapes.add(node)
        if node.op not in ("call_method", "call_function"):
            continue
        method = str(node.target) if node.op == "call_method" else ""
        if method and (is_shape(node.args[0]) or not _is_method(method)):
            node.op, node.target, node.args = "call_function", invoke, (node.args[0], method, *node.args[1:])
            continue
        target = getattr(Tensor, method) if method else node.target
        if target is Tensor.size or target is getattr:
            node.op, node.target = "call_function", target
            continue
        name = getattr(target, "__name__", "")
        in_place = name.endswith("_") and not name.startswith("__")
        if in_place or node.kwargs.get("inplace") is True or "out" in node.kwargs or name == "setitem":
            node.meta["mutates"] = True
            node.op, node.target = "call_function", target
            continue
        node.op = "call_function"
        node.target, node.args, node.kwargs = canonical_call(target, node.args, dict(node.kwargs), is_shape)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op == "get_attr" and node is not first:
            first.prepend(node)


def _is_method(name: str) -> bool:
    """Whether a tensor has a method of this name; ``hasattr`` would also find what the class itself can do."""
    return any(name in vars(kind) for kind in Tensor.__mro__)


def _gives_shape(node: fx.Node, is_shape: Callable[[Any], bool]) -> bool:
    """Whether a node returns a ``torch.Size``: a shape, a slice of one, or two concatenated."""
    if node.op == "call_method":
        return node.target == "size" and len(node.args) == 1 and not node.kwargs
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    if node.target is operator.getitem:
        return (
            isinstance(node.args[0], fx.Node) and is_shape(node.args[0]) and isinstance(node.args[1], slice)
        )
    if node.target in _SHAPE_FUNCTIONS:
        return any(isinstance(arg, fx.Node) and is_shape(arg) for arg in node.args)
    return node.target is torch.broadcast_shapes
