"""Read a node's arguments under the canonical names of its operator."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.graph.ops.lookup import Found, resolve
from sparsebit.graph.ops.spec import OpCall, OpSpec, Signature, parse_signature
from sparsebit.graph.value import TensorInfo

_NOTHING = object()

# what many torch functions accept beside their own names
_SYNONYMS = {"axis": "dim", "keepdims": "keepdim", "x": "input"}


def bind(gm: GraphModule, node: Node) -> OpCall | None:
    """The call a node makes, or None if its operator is unknown.

    Whether the operator came as a module, a function, a method or an aten overload, the arguments read the
    same: what the call passes, else what the module holds, else what the target implies, else the default.
    """
    found = resolve(gm, node)
    if found is None:
        return None
    module = gm.get_submodule(str(node.target)) if node.op == "call_module" else None
    form = _form_of(found, node, module)
    given = _pair_up(form, node.args)
    given |= {_canonical(found.spec, name): value for name, value in node.kwargs.items()}
    if module is not None:
        given |= _held_by(module, str(node.target), found.spec, given)
    defaults = (
        parse_signature(found.spec.signature).defaults,
        form.defaults,
        found.spec.implied.get(found.key, {}),
    )
    given = {name: value for source in (*defaults, given) for name, value in source.items()}
    if found.spec.tidy:
        found.spec.tidy(given)
    ordered = {name: given[name] for name in found.spec.parameters if name in given}
    return OpCall(spec=found.spec, node=node, owner=gm, module=module, arguments=ordered | given)


def _form_of(found: Found, node: Node, module: nn.Module | None) -> Signature:
    spec, target = found.spec, node.target
    if target is getattr:  # x.T: the operator is chosen by the name, which is not an argument of it
        return parse_signature("input, attribute")
    if found.key in spec.orders:
        return parse_signature(spec.orders[found.key])
    if module is not None:
        own = _python_signature(type(module).forward, skip_self=True)
        own = own._replace(defaults={}) if own else None  # the attributes of the module are its defaults
    elif isinstance(target, torch._ops.OpOverload):
        own = _schema_signature(target)
    else:
        own = _python_signature(target)
    return _rename(spec, own) if own else parse_signature(spec.signature)


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


@lru_cache(maxsize=4096)
def _python_signature(function: object, skip_self: bool = False) -> Signature | None:
    """Signature of a function written in Python, or None for the built-in ones, which do not tell."""
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


@lru_cache(maxsize=4096)
def _schema_signature(overload: torch._ops.OpOverload) -> Signature:
    arguments = overload._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return Signature(tuple(a.name for a in arguments), defaults)
