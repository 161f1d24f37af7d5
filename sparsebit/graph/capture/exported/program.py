"""The front-end over ``torch.export``: an exported program, or a model exported on request."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.input_size import InputSize
from sparsebit.graph.capture.call.signature import CallSignature
from sparsebit.graph.capture.call.structure import Tree, flatten, leaves_of, shift
from sparsebit.graph.capture.exported.convert import convert_graph
from sparsebit.graph.capture.leaves import is_torch_leaf
from sparsebit.graph.capture.modes import flipped_modes, merge_modes
from sparsebit.graph.capture.module import CapturedModule, build_shell, in_place_when_private
from sparsebit.graph.capture.placement import assemble
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.capture.snapshot import training_flags
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.codegen import find_unsafe_name, is_plain_path
from sparsebit.graph.exclusive import CAPTURING, without_warnings
from sparsebit.graph.value import TensorInfo

_ONE_MODE = (
    "an exported program contains only the mode it was exported in; capture the module to have both modes"
)


@dataclass(frozen=True)
class _Slot:
    """Placeholder for one flat input or output while the structure around it is rebuilt."""

    index: int


def from_exported(program: torch.export.ExportedProgram) -> CapturedModule:
    """The normal form of an exported program; it keeps the one mode it was exported in."""
    with CAPTURING:  # see from_model
        return _from_exported(program)


def _from_exported(program: torch.export.ExportedProgram) -> CapturedModule:
    _refuse_unsafe_name(
        next((name for name in (*program.state_dict, *program.constants) if not is_plain_path(name)), None)
    )
    exported = _unlifted(program)
    graph = convert_graph(exported, exported, {})
    signature = _signature(program, graph, _parameters(program, exported))
    root = nn.Module()
    for table in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
        setattr(root, table, getattr(exported, table))
    root.training = False
    report = CaptureReport(frontend="exported")
    return assemble(
        root,
        graph,
        signature,
        type(exported).__name__,
        report,
        constants=_constants(graph),
        conflict=_ONE_MODE,
    )


def from_model(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> CapturedModule:
    """Export a model with every dimension dynamic, and bring its ``torch.nn`` modules back into the graph.

    It is exported in both modes, so that what depends on ``training`` follows the mode. One thread at a time, to the
    end: while any thread exports, torch follows the symbolic sizes of all of them, also those of a finished program.
    """
    with CAPTURING:
        return _from_model(model, args, kwargs)


def _from_model(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> CapturedModule:
    _refuse_unsafe_name(find_unsafe_name(model))
    program = _export(model, args, kwargs)
    modules = dict(model.named_modules(remove_duplicate=False))
    graph = convert_graph(_unlifted(program), model, modules)
    raised = {str(n.target): model.get_submodule(str(n.target)) for n in graph.nodes if n.op == "call_module"}
    in_place = {path: module for path, module in raised.items() if getattr(module, "inplace", False) is True}
    replaced = {path: in_place_when_private(module) for path, module in in_place.items()}
    signature = _signature(program, graph, inspect.signature(model.forward))
    conflict = _compare_modes(model, args, kwargs, graph)
    leaves = {id(m) for m in model.modules() if m is not model and is_torch_leaf(m)}
    shell = build_shell(model, leaves, replaced)
    report = CaptureReport(frontend="exported")
    return assemble(
        shell, graph, signature, type(model).__name__, report, constants=_constants(graph), conflict=conflict
    )


def _refuse_unsafe_name(name: str | None) -> None:
    """torch.export writes names unescaped into code and runs it, so unsafe names are refused."""
    if name is not None:
        raise CaptureError(
            f"torch.export cannot take a module or tensor named {name!r}",
            expected="names of letters, digits and underscores that are not Python keywords",
            hint="use the default front-end, which takes any name: sparsebit.capture(model, args)",
        )


def _constants(graph: fx.Graph) -> dict[str, Any]:
    return {str(node.target): node.meta["constant"] for node in graph.nodes if "constant" in node.meta}


def _export(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    parameters = inspect.signature(model.forward)

    def dynamic(value: Any) -> Any:
        automatic = torch.export.Dim.AUTO
        return {dim: automatic for dim in range(value.dim())} if isinstance(value, Tensor) else None

    try:
        bound = parameters.bind(*args, **kwargs)
        shapes = {name: pytree.tree_map(dynamic, value) for name, value in bound.arguments.items()}
        with without_warnings():  # torch's own, about its own internals
            # a tensor that is passed twice would be treated as one input
            positional, keyword = pytree.tree_map_only(
                Tensor, lambda tensor: tensor.detach().clone(), (tuple(args), kwargs)
            )
            return torch.export.export(model, positional, keyword, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        place = source_of_error(error)
        raise CaptureError(
            f"torch.export refused {type(model).__name__}: {str(error).splitlines()[0] if str(error) else type(error)}",
            where=str(place) if place else None,
            hint="use the default front-end, which takes what torch.export cannot: sparsebit.capture(model, args)",
        ) from error


def _unlifted(program: torch.export.ExportedProgram) -> fx.GraphModule:
    options = (
        {"check_guards": False} if "check_guards" in inspect.signature(program.module).parameters else {}
    )
    try:
        module = program.module(**options)
    except RuntimeError as error:  # a part named as an attribute of GraphModule: ``meta``, ``code``
        raise CaptureError(
            f"torch.export cannot make a module of its program: {str(error).splitlines()[0]}",
            hint="use the default front-end: sparsebit.capture(model, args)",
        ) from error
    assert isinstance(module, fx.GraphModule)
    return module


def _parameters(program: torch.export.ExportedProgram, exported: fx.GraphModule) -> inspect.Signature:
    """The signature of an exported program, from the names it kept."""
    args, kwargs = program.call_spec.in_spec.children()
    codegen = exported.graph._codegen
    known = list(getattr(codegen, "pytree_info", ((),))[0])
    names = [name for name in known if name != "self"][: args.num_children]
    names += [f"arg{index}" for index in range(len(names), args.num_children)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    keywords = [name for name in (kwargs.context or []) if name not in names]
    return inspect.Signature(
        [inspect.Parameter(name, kind) for name in names]
        + [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords]
    )


def _signature(
    program: torch.export.ExportedProgram, graph: fx.Graph, parameters: inspect.Signature
) -> CallSignature:
    """Our signature for the exported program's flat inputs; its placeholders are reordered to match."""
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    assert in_spec is not None and out_spec is not None
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    slots = [_Slot(index) for index in range(in_spec.num_leaves)]
    values = [node.meta["value"] for node in placeholders]
    filled = [
        slot if isinstance(value, TensorInfo) else value for slot, value in zip(slots, values, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(filled, in_spec)
    bound = parameters.bind(*args, **kwargs)
    bound.apply_defaults()
    inputs: dict[str, Tree] = {}
    order: list[fx.Node] = []
    for name, value in bound.arguments.items():
        leaves, tree = flatten(value, name, lambda item: isinstance(item, _Slot))
        inputs[name] = shift(tree, len(order))
        order += [placeholders[slot.index] for slot in leaves]
    for node in placeholders:
        if node not in order:
            graph.erase_node(node)
    _arrange(graph, order, inputs)
    output = next(iter(reversed(graph.nodes)))
    flat = list(pytree.tree_leaves(output.args[0]))
    structure = pytree.tree_unflatten([_Slot(index) for index in range(len(flat))], out_spec)
    found, tree = flatten(structure, "output", lambda item: isinstance(item, _Slot))
    output.args = (tuple(flat[slot.index] for slot in found),)
    leaves = [leaf for tree in inputs.values() for leaf in leaves_of(tree)]
    sizes = [
        _sizes_of(leaf.path, node.meta.pop("input").shape, program)
        for leaf, node in zip(leaves, order, strict=True)
    ]
    return CallSignature(parameters, inputs, tree).with_limits(sizes)


def _sizes_of(
    name: str, shape: Sequence[Any], program: torch.export.ExportedProgram
) -> tuple[InputSize, ...]:
    """The sizes of one input according to torch.export: a plain number is fixed, a symbol has a range."""
    sizes = []
    for dim, size in enumerate(shape):
        symbol = size.node.expr if isinstance(size, torch.SymInt) else None
        if symbol is None or symbol.is_Integer:
            why = "torch.export fixed it"
            why += "; it does so with every dimension of size 1 in the example" if size == 1 else ""
            sizes.append(InputSize.fixed(name, dim, int(size), why))
            continue
        limits = program.range_constraints.get(symbol)
        least, most = (_number(limits.lower), _number(limits.upper)) if limits is not None else (None, None)
        if least is not None and least == most:
            sizes.append(InputSize.fixed(name, dim, least, "torch.export fixed it"))
            continue
        least = 0 if least is None or least <= 2 else least  # torch.export assumes a size of at least 2
        sizes.append(InputSize(name, dim, least, most, "followed by torch.export"))
    return tuple(sizes)


def _number(limit: Any) -> int | None:
    """A limit of a range, or None if there is none."""
    return int(limit) if limit.is_Integer else None


def _arrange(graph: fx.Graph, order: list[fx.Node], inputs: dict[str, Tree]) -> None:
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in order:
        first.prepend(node)
    names = [leaf.path for tree in inputs.values() for leaf in leaves_of(tree)]
    for node, name in zip(order, names, strict=True):
        node.target = "".join(c if c.isalnum() else "_" for c in name)
        node.args = ()


def _compare_modes(
    model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], graph: fx.Graph
) -> str | None:
    insides = [m for m in model.modules() if m is model or not is_torch_leaf(m)]
    try:
        with flipped_modes(insides):
            program = _export(model, args, kwargs)
    except CaptureError as error:
        return str(error.where or error.message)
    other = convert_graph(_unlifted(program), model, dict(model.named_modules(remove_duplicate=False)))
    _signature(program, other, inspect.signature(model.forward))
    return merge_modes(graph, other, training_flags(model).__getitem__)
