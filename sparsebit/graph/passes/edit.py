"""The edits that passes make: replace nodes, and replace modules and tensors of the graph module.

A captured graph shares its leaf modules and parameters with the user's model. So nothing here changes a module or a
tensor in place: anything to be changed is copied first, and so is every container of the user's on the path to it.
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
    """Copy to a node the metadata of the one it replaces: value, module path and place in the source."""
    new.meta = {**old.meta, **new.meta}
    new.meta.pop("mutates", None)
    return new


def replace_node(old: Node, new: Node) -> None:
    """Make all readers of ``old`` read ``new``, and erase ``old``."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def replace_value(old: Node, value: Any) -> None:
    """Make all readers of ``old`` read a constant, or a tuple of nodes and constants, and erase ``old``."""
    for user in list(old.users):
        replace_input(user, old, value)
    old.graph.erase_node(old)


def replace_input(user: Node, old: Node, value: Any) -> None:
    """Make one node read a constant, or a tuple of nodes and constants, wherever it reads ``old``."""
    user.args = map_arg(user.args, lambda node: value if node is old else node)
    user.kwargs = map_arg(user.kwargs, lambda node: value if node is old else node)


def only_input(node: Node) -> Node | None:
    """The first argument of a call, positional or not, if it is a node."""
    first = next(iter((*node.args, *node.kwargs.values())), None)
    return first if isinstance(first, Node) else None


def shallow_copy(module: nn.Module) -> nn.Module:
    """A new module that shares parameters, buffers, children and everything else with the original."""
    own: nn.Module = object.__new__(type(module))  # copy.copy asks modules that refuse (parametrized ones)
    own.__dict__.update({k: copy.copy(v) if isinstance(v, _TABLES) else v for k, v in vars(module).items()})
    return own


def own_module(gm: GraphModule, path: str) -> nn.Module:
    """The module at a path, copied if necessary so that changing it changes no other module."""
    ours = (nn.Module, *_CONTAINERS) if hasattr(gm, "capture_report") else (nn.Module,)
    owner: nn.Module = gm
    untouched = True  # the modules a graph module makes itself are above those it shares
    for name in path.split(".") if path else ():
        child = owner.get_submodule(name)
        untouched = untouched and type(child) in ours
        if not untouched:
            child = shallow_copy(child)
            owner._modules[name] = child
        owner = child
    return owner


def set_module(gm: GraphModule, path: str, module: nn.Module) -> None:
    """Put a module at a path of the graph module."""
    parent, _, name = path.rpartition(".")
    own_module(gm, parent)._modules[name] = module


def remove_module(gm: GraphModule, path: str) -> None:
    """Remove a module from the graph module."""
    parent, _, name = path.rpartition(".")
    del own_module(gm, parent)._modules[name]


def set_tensor(gm: GraphModule, path: str, value: Tensor, like: Tensor) -> None:
    """Put a new tensor at a path of the graph module, as a parameter or buffer like ``like``."""
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
    """Remove a parameter or buffer from the graph module.

    Hooks of torch on the state dict of its module go with it: those of ``torch.nn.utils.spectral_norm`` need it.
    """
    parent, _, name = path.rpartition(".")
    owner = own_module(gm, parent)
    delattr(owner, name)
    for table in (getattr(owner, name) for name in STATE_HOOKS):
        for key, hook in list(table.items()):
            if type(getattr(hook, "hook", hook)).__module__.startswith("torch.nn.utils."):
                del table[key]
