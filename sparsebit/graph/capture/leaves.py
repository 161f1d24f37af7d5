"""Which modules stay one node in the graph."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import CodeType

import torch
from torch import nn
from torch.nn.utils import parametrize

from sparsebit.errors import CaptureError
from sparsebit.graph.ops.lookup import is_own_class

# Containers of torch.nn, and modules whose inside has to be visible: they hide projections, matmuls and softmax.
OPENED = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.MultiheadAttention),
    *(nn.Transformer, nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer),
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Methods that a subclass may define and still count as the torch.nn module it derives from.
_HARMLESS = {
    *("__init__", "__module__", "__doc__", "__annotations__", "__qualname__", "__firstlineno__", "__dict__"),
    *("__weakref__", "__static_attributes__", "__constants__", "__repr__", "extra_repr", "reset_parameters"),
    *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__slots__", "__hash__"),
    "_get_name",
}


def torch_base(kind: type) -> type | None:
    """The ``torch.nn`` class that a module class behaves as: itself, or the base whose methods it does not override."""
    for index, base in enumerate(kind.__mro__):
        if base.__module__.startswith("torch.nn."):
            if base is nn.Module:
                return None
            overridden = {name for below in kind.__mro__[:index] for name in vars(below)} - _HARMLESS
            return base if not any(hasattr(base, name) for name in overridden) else None
    return None


def has_hooks(module: nn.Module) -> bool:
    """Whether calling a module runs more than its forward."""
    return any(getattr(module, table) for table in _HOOKS)


def is_torch_leaf(module: nn.Module) -> bool:
    """Whether a module is a plain ``torch.nn`` module that can stay one node."""
    return not has_hooks(module) and _is_plain(module)


def _is_plain(module: nn.Module) -> bool:
    if isinstance(module, OPENED) or parametrize.is_parametrized(module) or "forward" in vars(module):
        return False
    return torch_base(type(module)) is not None


def is_stochastic_leaf(module: nn.Module) -> bool:
    """Whether a user's module is DropPath-like: no state, no children, and a forward that asks for ``training``."""
    held = [*module.children(), *module.parameters(), *module.buffers()]
    if held or has_hooks(module) or getattr(module, "opened", False):
        return False
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    return isinstance(code, CodeType) and "training" in code.co_names


def _hooks_of_torch(module: nn.Module) -> bool:
    """Whether a hook is torch's own: old weight and spectral norm compute the weight in one."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any(type(hook).__module__.startswith("torch.") for hook in hooks)


def without_hooks(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters and buffers and has no hooks."""
    bare = copy.copy(module)
    for table in _HOOKS:
        bare.__dict__[table] = OrderedDict()
    return bare


@dataclass
class LeafModules:
    """The modules of one model that stay one node."""

    ids: set[int] = field(default_factory=set)  # of modules that become one node
    hooked: dict[str, nn.Module] = field(default_factory=dict)  # one node each, between what their hooks do
    with_hooks: list[str] = field(default_factory=list)  # names of all modules that the user put hooks on


def find_leaves(model: nn.Module, skip: Sequence[str] = (), *, stochastic: bool = True) -> LeafModules:
    """Decide which modules stay one node: torch's own, registered, scripted, requested, or DropPath-like."""
    found, unmatched = LeafModules(), set(skip)
    names: dict[int, str] = {}  # the first of a shared module's names
    for name, module in model.named_modules(remove_duplicate=False):
        matched = [pattern for pattern in skip if name and fnmatchcase(name, pattern)]
        unmatched -= set(matched)
        drops = stochastic and is_stochastic_leaf(module)
        scripted = isinstance(module, torch.jit.ScriptModule)
        if has_hooks(module) and not _hooks_of_torch(module) and name not in found.with_hooks:
            found.with_hooks.append(name)
        registered = is_own_class(type(module)) and not has_hooks(module)
        if name and (matched or is_torch_leaf(module) or scripted or drops or registered):
            found.ids.add(id(module))
        elif name and has_hooks(module) and _is_plain(module) and not _hooks_of_torch(module):
            found.hooked.setdefault(names.setdefault(id(module), name), module)
    if unmatched:
        raise CaptureError(
            f"skip pattern {sorted(unmatched)[0]!r} matches no module",
            expected="fnmatch patterns on dotted module names, such as 'encoder.layer.*'",
            hint="list the names with [name for name, _ in model.named_modules()]",
        )
    return found
