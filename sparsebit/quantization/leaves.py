"""Leaves that belong to the graph: what happens to them does not happen to the user's model."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from torch import nn
from torch.fx import GraphModule

_TABLES = (dict, list, set)  # also what hooks are kept in


def own_leaves(gm: GraphModule) -> int:
    """Put copies in the place of the modules that a captured graph shares with the user's model; returns how many.

    Parameters and buffers stay shared. The mode does not: a model in training must not find its dropout switched
    off because its quantized twin was calibrated. A module that is shared inside the model stays shared.
    """
    copies: dict[int, nn.Module] = {}
    for name, child in gm._modules.items():
        gm._modules[name] = None if child is None else _copy(child, copies)
    return len(copies)


def _copy(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in copies:
        own = copies[id(module)] = copy_leaf(module)
        for name, child in module._modules.items():
            own._modules[name] = None if child is None else _copy(child, copies)
    return copies[id(module)]


def copy_leaf(module: nn.Module) -> nn.Module:
    """A module of its own that shares parameters, buffers, children and everything else with the original."""
    own: nn.Module = object.__new__(
        type(module)
    )  # copy.copy asks modules that refuse, such as parametrized ones
    own.__dict__.update({k: copy.copy(v) if isinstance(v, _TABLES) else v for k, v in vars(module).items()})
    return own


@contextlib.contextmanager
def evaluating(gm: GraphModule) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in the mode it was in, frozen ones included."""
    before = {module: module.training for module in gm.modules()}
    was = gm.training
    gm.eval()
    try:
        yield
    finally:
        for module in gm.modules():
            module.training = before.get(module, was)
