"""The edits that passes make: put one node in the place of another, swap what the graph module holds.

A captured graph shares its leaf modules and parameters with the user's model. So nothing here changes a
module or a tensor in place: what must differ is copied first, and so is every container of the user's on the
way to it.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from sparsebit.graph.replaced_parameters import announce_replacement

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
STATE_HOOKS = (  # the tables of hooks that saving and loading a state dict calls
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_TABLES = (dict, list, set)  # of parameters, buffers, children and hooks


def inherit_meta(new: Node, old: Node) -> Node:
    """Give a node what was known about the one it stands for: value, module path and place in the source."""
    new.meta = {**old.meta, **new.meta}
    new.meta.pop("mutates", None)
    return new


def replace_node(old: Node, new: Node) -> None:
    """Let everything read ``new`` instead of ``old``, and erase ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def replace_value(old: Node, value: Any) -> None:
    """Let everything read a constant, or a tuple of nodes and constants, instead of ``old``, and erase it."""
    for user in list(old.users):
        replace_input(user, old, value)
    old.graph.erase_node(old)


def replace_input(user: Node, old: Node, value: Any) -> None:
    """Let one node read a constant, or a tuple of nodes and constants, wherever it reads ``old``."""
    user.args = map_arg(user.args, lambda node: value if node is old else node)
    user.kwargs = map_arg(user.kwargs, lambda node: value if node is old else node)


def only_input(node: Node) -> Node | None:
    """The first argument of a call, positional or not, if it is a node."""
    first = next(iter((*node.args, *node.kwargs.values())), None)
    return first if isinstance(first, Node) else None


def copy_module(module: nn.Module) -> nn.Module:
    """A module of its own that shares parameters, buffers, children and everything else with the original."""
    own: nn.Module = object.__new__(type(module))  # copy.copy asks modules that refuse (parametrized ones)
    own.__dict__.update({k: copy.copy(v) if isinstance(v, _TABLES) else v for k, v in vars(module).items()})
    return own


def own_module(gm: GraphModule, path: str) -> nn.Module:
    """The module at a path, after making sure that changing what it holds changes no other module."""
    ours = (nn.Module, *_CONTAINERS) if hasattr(gm, "capture_report") else (nn.Module,)
    owner: nn.Module = gm
    untouched = True  # the modules a graph module makes itself are above those it shares
    for name in path.split(".") if path else ():
        child = owner.get_submodule(name)
        untouched = untouched and type(child) in ours
        if not untouched:
            child = copy_module(child)
            owner._modules[name] = child
        owner = child
    return owner


def set_module(gm: GraphModule, path: str, module: nn.Module) -> None:
    """Put a module at a path of the graph module."""
    parent, _, name = path.rpartition(".")
    own_module(gm, parent)._modules[name] = module


def remove_module(gm: GraphModule, path: str) -> None:
    """Take a module out of the graph module."""
    parent, _, name = path.rpartition(".")
    del own_module(gm, parent)._modules[name]


def set_tensor(gm: GraphModule, path: str, value: Tensor, like: Tensor) -> None:
    """Put a new parameter or buffer at a path of the graph module; which of them, ``like`` decides."""
    parent, _, name = path.rpartition(".")
    owner = own_module(gm, parent)
    if isinstance(like, nn.Parameter):
        parameter = nn.Parameter(value, requires_grad=like.requires_grad)
        setattr(owner, name, announce_replacement(like, parameter))
    elif name in owner._buffers:
        owner._buffers[name] = value
    else:
        owner.register_buffer(name, value)


def remove_tensor(gm: GraphModule, path: str) -> None:
    """Take a parameter or buffer out of the graph module.

    Hooks of torch on the state dict of its module go with it: those of ``torch.nn.utils.spectral_norm`` ask for it.
    """
    parent, _, name = path.rpartition(".")
    owner = own_module(gm, parent)
    delattr(owner, name)
    for table in (getattr(owner, name) for name in STATE_HOOKS):
        for key, hook in list(table.items()):
            if type(getattr(hook, "hook", hook)).__module__.startswith("torch.nn.utils."):
                del table[key]
