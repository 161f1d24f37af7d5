"""Where the repeated blocks of a model are, found from its tree of modules."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from sparsebit.errors import SparsebitError


class Stack(NamedTuple):
    """The list of modules that a model calls one after the other: its decoder layers, its encoder layers."""

    path: str  # of the list, such as "model.layers"
    names: tuple[str, ...]  # of the blocks, in order
    modules: tuple[nn.Module, ...]


def find_stack(model: nn.Module) -> Stack:
    """The list of blocks that holds the most parameters.

    Any ``ModuleList`` or ``Sequential`` of at least two modules of one class counts; lists inside a block (its experts)
    hold less than the list of the blocks itself. Classes that share a base are one class (Jamba's attention and Mamba
    layers) where no list of one class holds half as much.

    Example:
        >>> net = nn.Sequential(nn.Embedding(9, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))
        >>> find_stack(net).names
        ('1.0', '1.1', '1.2')
    """
    best: Stack | None = None
    largest = 0.0
    for path, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(module) < 2:
            continue
        kinds = {type(child) for child in module}
        shared = set.intersection(*(set(kind.__mro__) for kind in kinds)) - set(nn.Module.__mro__)
        size = sum(parameter.numel() for parameter in module.parameters()) / (1 if len(kinds) == 1 else 2)
        if shared and nn.ModuleList not in shared and size > largest:
            prefix = f"{path}." if path else ""
            names = tuple(f"{prefix}{name}" for name, _ in module.named_children())
            best, largest = Stack(path, names, tuple(module)), size
    if best is None:
        raise SparsebitError(
            f"{type(model).__name__} has no list of repeated blocks",
            expected="a ModuleList or Sequential of two or more modules of one class, such as model.layers",
            hint="for a model without blocks use sparsebit.quantize",
        )
    return best
