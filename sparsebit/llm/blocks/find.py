"""Where the repeated blocks of a model are, found from its tree of modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd

from sparsebit.errors import SparsebitError


class Stack(NamedTuple):
    """A list of modules that a model calls one after the other: its decoder layers, its encoder layers."""

    path: str  # of the list, such as "model.layers"
    names: tuple[str, ...]  # of the blocks, in order
    modules: tuple[nn.Module, ...]


def find_stack(model: nn.Module) -> Stack:
    """The list of blocks that holds the most parameters.

    Any ``ModuleList`` or ``Sequential`` of at least two modules of one class counts, and a ``ModuleDict`` whose names
    differ by a number only; lists inside a block (its experts) hold less than the list of the blocks itself. Classes
    that share a base are one class (Jamba's attention and Mamba layers) where no list of one class holds half as much.
    A list of one module counts where there is no longer one: a model may call it several times (ALBERT).

    Example:
        >>> net = nn.Sequential(nn.Embedding(9, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(3)))
        >>> find_stack(net).names
        ('1.0', '1.1', '1.2')
    """
    return _by_size(model)[0]


def find_stacks(model: nn.Module) -> list[Stack]:
    """Every list of blocks, in the order of the model: also the encoder of a decoder, or attention beside its MLPs.

    Beside the largest one, those outside it count whose blocks hold matrices and consist of several modules, or are as
    many. So a list of output layers or of embeddings is none.
    """
    candidates = _by_size(model)
    found = candidates[:1]
    for one in candidates[1:]:
        apart = not any(_inside(one, other) or _inside(other, one) for other in found)
        parts = all(any(block.children()) for block in one.modules)
        if (
            apart
            and (parts or len(one.modules) == len(found[0].modules))
            and all(map(_has_matrix, one.modules))
        ):
            found.append(one)
    place = {id(module): index for index, module in enumerate(model.modules())}
    return sorted(found, key=lambda one: place[id(one.modules[0])])


def _by_size(model: nn.Module) -> list[Stack]:
    """Every list that may be one of blocks, the largest first."""
    sized = sorted(_candidates(model), key=lambda found: found[0], reverse=True)
    longer = [one for _, one in sized if len(one.modules) > 1]
    if not sized:
        raise SparsebitError(
            f"{type(model).__name__} has no list of repeated blocks",
            expected="a ModuleList or Sequential of two or more modules of one class, such as model.layers",
            hint="for a model without blocks use sparsebit.quantize",
        )
    return longer or [one for _, one in sized]


def _candidates(model: nn.Module) -> Iterator[tuple[float, Stack]]:
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        children = dict(module.named_children())  # a module that is there several times is one block
        if isinstance(module, nn.ModuleDict) and len({re.sub(r"\d+", "#", name) for name in children}) > 1:
            continue  # an encoder beside a decoder, or one head for each task
        if not children or (len(children) == 1 and not isinstance(module, nn.ModuleList)):
            continue
        kinds = {type(child) for child in children.values()}
        shared = set.intersection(*(set(kind.__mro__) for kind in kinds)) - set(nn.Module.__mro__)
        size = sum(parameter.numel() for parameter in module.parameters()) / (1 if len(kinds) == 1 else 2)
        if shared and nn.ModuleList not in shared and size:
            prefix = f"{path}." if path else ""
            yield size, Stack(path, tuple(f"{prefix}{name}" for name in children), tuple(children.values()))


def _inside(stack: Stack, other: Stack) -> bool:
    modules = {id(module) for block in other.modules for module in block.modules()}
    return any(id(module) in modules for module in stack.modules)


def _has_matrix(block: nn.Module) -> bool:
    """Whether a block multiplies by weights; tables and kernels of convolutions are none."""
    others = (nn.Embedding, _ConvNd)
    return any(
        one.dim() in (2, 3)
        for module in block.modules()
        if not isinstance(module, others)
        for one in module.parameters(recurse=False)
    )
