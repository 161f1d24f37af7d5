"""From a node to its ``OpSpec``: one dictionary lookup, for nodes from every front-end."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch.fx import GraphModule, Node

from sparsebit.errors import RegistryError
from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.table import TABLE
from sparsebit.registry import Registry

OPS: Registry[OpSpec] = Registry("operator")
"""Every known operator by canonical name."""

# In order of registration: where two hold the same name or target, the later one wins.
_LAYERS: list[OpSpec] = []
_BY_TARGET: dict[object, OpSpec] = {}
_CHOICES: dict[object, Callable[[Node], str]] = {}
_CLASS_NAMES: dict[str, OpSpec] = {}


class Found(NamedTuple):
    """An operator and the entry of its ``targets`` (or ``overloads``) that led to it."""

    spec: OpSpec
    key: object


def find_op(gm: GraphModule, node: Node) -> OpSpec | None:
    """The operator that a node calls, or None if it is unknown or the node calls nothing."""
    found = resolve(gm, node)
    return found.spec if found else None


def op_name(gm: GraphModule, node: Node) -> str | None:
    """The canonical name of the operator a node calls, or None."""
    found = resolve(gm, node)
    return found.spec.name if found else None


def resolve(gm: GraphModule, node: Node) -> Found | None:
    """As ``find_op``, with the target that matched: argument orders differ by target."""
    return find_call(node, gm.get_submodule(str(node.target)) if node.op == "call_module" else None)


def find_call(node: Node, module: torch.nn.Module | None) -> Found | None:
    """As ``resolve``, for a given module if the node calls one."""
    if module is not None:
        found = find_class(type(module))
    elif node.op == "call_function":
        found = find_function(node.target)
    elif node.op == "call_method":
        found = find_function(getattr(torch.Tensor, str(node.target), None))
    else:
        return None
    if found and (choose := _CHOICES.get(found.key)):
        return Found(OPS[choose(node)], found.key)
    return found


def find_function(target: object) -> Found | None:
    """The operator of a function, method, operator or aten overload, without looking at its arguments."""
    key = target_key(target)
    try:
        if spec := _BY_TARGET.get(key):
            return Found(spec, key)
    except TypeError:  # unhashable, so it cannot have been registered
        return None
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name  # all overloads
    else:
        name = f"{getattr(target, '__module__', None)}.{getattr(target, '__qualname__', None)}"
    return Found(_BY_TARGET[name], name) if name in _BY_TARGET else None


def find_class(kind: type[torch.nn.Module]) -> Found | None:
    """The operator of a module class: its own, that of a base class whose forward it inherits, or that of its name."""
    # a class that does the same as another one, and more, says so
    kind = cast("type[torch.nn.Module]", getattr(kind, "stands_for", kind))
    for base in kind.__mro__:
        if (spec := _BY_TARGET.get(base)) and kind.forward is base.forward:  # type: ignore[attr-defined]
            return Found(spec, base)
    if spec := _BY_TARGET.get(f"{kind.__module__}.{kind.__qualname__}"):
        return Found(spec, kind)
    for pattern, spec in _CLASS_NAMES.items():
        if fnmatch.fnmatchcase(kind.__name__, pattern):
            return Found(spec, kind)
    return None


def is_own_class(kind: type[torch.nn.Module]) -> bool:
    """Whether an operator was registered for exactly this class, which is not one of torch's."""
    return kind in _BY_TARGET and not kind.__module__.startswith("torch.")


def register_op(
    spec: OpSpec | None = None,
    *,
    name: str | None = None,
    targets: tuple[object, ...] | None = None,
    like: str | None = None,
    replace: bool = False,
    **fields: object,
) -> OpSpec:
    """Describe your own operator to the library.

    Pass an ``OpSpec``, or its fields; ``like`` copies the fields of a known operator, so that only the name and the
    targets are needed, but ``with_weight`` only for classes that inherit its ``forward``. A name or target that is
    already in use is an error, unless ``replace=True``: then this one is used until ``unregister_op`` removes it.

    Example:
        >>> def clipped_relu(x): return x.clamp(0, 6)
        >>> register_op(name="clipped_relu", targets=(clipped_relu,), like="relu")
        <operator clipped_relu>
        >>> unregister_op("clipped_relu")
    """
    if spec is None:
        if name is None or targets is None:
            raise RegistryError(
                "an operator needs a name and targets",
                got=f"name={name!r}, targets={targets!r}",
                hint='register_op(name="my_relu", targets=(my_relu,), like="relu")',
            )
        spec = _build(name, targets, like, fields)
    elif name or targets or like or fields:
        raise RegistryError("pass either an OpSpec or its fields, not both", where=f"operator {spec.name!r}")
    if spec.placed_as:
        OPS[spec.placed_as]  # an unknown name raises an error that lists the names
    if not replace:
        _refuse_clash(spec)
    _LAYERS.append(spec)
    try:
        _add(spec)
    except Exception:  # a wrong entry leaves nothing behind, so that it can be corrected and registered again
        _LAYERS.remove(spec)
        _add_again()
        raise
    return spec


def unregister_op(name: str) -> None:
    """Remove the latest operator of this name; the one it had replaced is used again."""
    spec = OPS[name]
    if any(spec is known for known in TABLE):
        raise RegistryError(
            f"operator {name!r} is part of the library", hint="register_op(..., replace=True) overrides it"
        )
    _LAYERS.remove(spec)
    _add_again()


def _add_again() -> None:
    for index in (_BY_TARGET, _CHOICES, _CLASS_NAMES):
        index.clear()
    for known in list(OPS):
        OPS.remove(known)
    for layer in _LAYERS:
        _add(layer)


def _build(name: str, targets: tuple[object, ...], like: str | None, fields: dict[str, object]) -> OpSpec:
    known = [field.name for field in dataclasses.fields(OpSpec)]
    if wrong := [field for field in fields if field not in known]:
        raise RegistryError(
            f"{', '.join(wrong)}: no such field of an operator",
            where=f"operator {name!r}",
            hint=f"the fields are {', '.join(known)}",
        )
    if like is None:
        return OpSpec(name=name, targets=targets, **fields)  # type: ignore[arg-type]
    # These fields are per target, and the targets differ.
    fresh: dict[str, object] = {name: {} for name in ("overloads", "orders", "implied")}
    fresh |= {"class_names": (), "family": "custom"}
    if not isinstance(targets, tuple | list) or not _inherits_forward(targets, OPS[like].targets):
        fresh["with_weight"] = None  # it would compute what the known operator computes
    return dataclasses.replace(OPS[like], **fresh | {"name": name, "targets": targets} | fields)  # type: ignore[arg-type]


def _inherits_forward(targets: Sequence[object], known: Sequence[object]) -> bool:
    """Whether the modules among targets compute what the known ones compute."""
    own = {getattr(target, "forward", None) for target in targets if isinstance(target, type)}
    return own <= {getattr(target, "forward", None) for target in known if isinstance(target, type)}


def _refuse_clash(spec: OpSpec) -> None:
    hint = "choose another, or pass replace=True to override it on purpose"
    if spec.name in OPS:
        raise RegistryError(f"operator {spec.name!r} is already taken by {OPS[spec.name]!r}", hint=hint)
    for target in map(target_key, (*spec.targets, *spec.overloads)):
        if target in _BY_TARGET:
            raise RegistryError(
                f"target {target!r} already belongs to operator {_BY_TARGET[target].name!r}",
                where=f"operator {spec.name!r}",
                hint=hint,
            )


def _add(spec: OpSpec) -> None:
    OPS.register(spec.name, replace=True)(spec)
    for target in map(target_key, spec.targets):
        _BY_TARGET[target] = spec
        _CHOICES.pop(target, None)
    for target, choose in spec.overloads.items():
        _BY_TARGET[target_key(target)] = spec
        _CHOICES[target_key(target)] = choose
    _CLASS_NAMES.update(dict.fromkeys(spec.class_names, spec))


def target_key(target: object) -> object:
    """The key of a target: an aten operator by name, an autograd function by class, others unchanged."""
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name
    # SomeFunction.apply is a new object at every access, and capture wraps it: the class identifies them all.
    for kind in (getattr(target, "__self__", None), getattr(target, "function", None)):
        if isinstance(kind, type) and issubclass(kind, torch.autograd.Function):
            return kind
    return target


for _spec in TABLE:
    register_op(_spec)
