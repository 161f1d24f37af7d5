"""Read a node's arguments under the canonical names of its operator."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.graph.ops.lookup import find_call
from sparsebit.graph.ops.spec import OpCall, OpSpec, Signature, parse_signature
from sparsebit.graph.value import TensorInfo

_NOTHING = object()

# names that many torch functions accept as alternatives
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x": "input"}


def bind(gm: GraphModule, node: Node) -> OpCall | None:
    """The call a node makes, or None if its operator is unknown.

    Whether the operator came as a module, a function, a method or an aten overload, the arguments are read in the same
    way: from the call, else from the module, else from the target, else the default.
    """
    module = gm.get_submodule(str(node.target)) if node.op == "call_module" else None
    found = find_call(node, module)
    if found is None:
        return None
    spec = found.spec
    form = _form_of(spec, found.key, node.target if module is None else type(module).forward, module is None)
    given = _pair_up(form, node.args)
    given |= {_canonical(spec, name): value for name, value in node.kwargs.items()}
    if module is not None:
        given |= _held_by(module, str(node.target), spec, given)
    given = {**form.defaults, **given}
    if spec.tidy:
        spec.tidy(given)
    ordered = {name: given[name] for name in spec.parameters if name in given}
    return OpCall(spec=spec, node=node, owner=gm, module=module, arguments=ordered | given)


@lru_cache(maxsize=4096)
def _form_of(spec: OpSpec, key: object, function: object, with_defaults: bool) -> Signature:
    """How a target is called, under the canonical names; the defaults of a module form are its attributes."""
    own: Signature | None = None
    if function is getattr:  # x.T: the operator is chosen by the name, which is not an argument of it
        own = parse_signature("input, attribute")
    elif key in spec.orders:
        own = parse_signature(spec.orders[key])
    elif isinstance(function, torch._ops.OpOverload):
        own = _rename(spec, _schema_signature(function))
    elif python := _python_signature(function, skip_self=not with_defaults):
        own = _rename(spec, python if with_defaults else python._replace(defaults={}))
    general = parse_signature(spec.signature)
    own = own or general
    return own._replace(defaults={**general.defaults, **own.defaults, **spec.implied.get(key, {})})


def _rename(spec: OpSpec, own: Signature) -> Signature:
    names = [_canonical(spec, name) for name in own.names]
    if names and names[0] not in spec.parameters and spec.parameters[0] not in names:
        names[0] = spec.parameters[0]
    renamed = dict(zip(own.names, names, strict=True))
    defaults = {renamed[name]: value for name, value in own.defaults.items()}
    return Signature(tuple(names), defaults, renamed.get(own.variadic or ""))


def _canonical(spec: OpSpec, name: str) -> str:
    if name in spec.aliases:
        return spec.aliases[name]
    if name in spec.parameters:
        return name
    if name == "self":
        return spec.parameters[0]
    synonym = _SYNONYMS.get(name)
    return synonym if synonym in spec.parameters else name


def _pair_up(form: Signature, args: Sequence[object]) -> dict[str, object]:
    if form.variadic is None:
        return dict(zip(form.names, args, strict=False))
    at = form.names.index(form.variadic)
    given = dict(zip(form.names[:at], args[:at], strict=False))
    rest = args[at:]
    if rest:
        given[form.variadic] = rest[0] if len(rest) == 1 and not _is_scalar(rest[0]) else tuple(rest)
    return given


def _is_scalar(value: object) -> bool:
    """Whether a lone variadic argument is one item, view(x, -1), or all of them, view(x, (-1,))."""
    if isinstance(value, Node):
        value = value.meta.get("value", ())
    return isinstance(value, TensorInfo) or not isinstance(value, (tuple, list))


def _held_by(module: nn.Module, path: str, spec: OpSpec, given: dict[str, object]) -> dict[str, object]:
    held: dict[str, object] = {}
    for name in spec.parameters:
        attribute = spec.attributes.get(name, name)
        value = getattr(module, attribute, _NOTHING) if name not in given else _NOTHING
        if value is not _NOTHING:
            held[name] = f"{path}.{attribute}" if isinstance(value, Tensor) else value
    return held


def _python_signature(function: object, *, skip_self: bool) -> Signature | None:
    """Signature of a function written in Python, or None for built-in functions, which have none."""
    if not inspect.isroutine(function) or inspect.isbuiltin(function) or inspect.ismethoddescriptor(function):
        return None
    try:
        parameters = list(inspect.signature(function).parameters.values())[1 if skip_self else 0 :]
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # a dispatcher: fn(*args, **kwargs)
        return None
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return Signature(tuple(p.name for p in parameters), defaults, variadic)


def _schema_signature(overload: torch._ops.OpOverload) -> Signature:
    arguments = overload._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return Signature(tuple(a.name for a in arguments), defaults)
