"""The labels of one tensor: for every element, which prunable channels it belongs to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Family:
    """One family of channels in a tensor. The label depends only on the position along ``dims``.

    An element is removed when its label is. ``labels`` has one axis for each of ``dims``, which ascend.
    """

    dims: tuple[int, ...]
    labels: Tensor
    seen: int = -1  # the version of the classes at which it was found to be as simple as can be

    def full(self, shape: tuple[int, ...]) -> Tensor:
        """The label of every element of a tensor of this shape, without copying."""
        thin = [1] * len(shape)
        for dim, size in zip(self.dims, self.labels.shape, strict=True):
            thin[dim] = size
        return self.labels.reshape(thin).expand(shape)

    def along(self, dims: tuple[int, ...]) -> Tensor:
        """Labels over ``dims`` in this order; along any other dim, the first position represents all."""
        labels = self.labels
        for axis in reversed(range(len(self.dims))):
            if self.dims[axis] not in dims:
                labels = labels.select(axis, 0)
        left = [dim for dim in self.dims if dim in dims]
        return labels.permute([left.index(dim) for dim in dims])

    def moved(self, where: dict[int, int]) -> Family:
        """The same labels with every dim renamed."""
        named = [where[dim] for dim in self.dims]
        if len(named) == 1:
            return Family((named[0],), self.labels, self.seen) if named[0] != self.dims[0] else self
        order = sorted(range(len(named)), key=named.__getitem__)
        return Family(tuple(sorted(named)), self.labels.permute(order))


@dataclass(frozen=True, eq=False)
class Labels:
    """All labels of one tensor: an element is kept if its labels in all families are kept.

    Args:
        zero: whether the elements of a removed channel would be zero if its parameters were.
        wild: a constant fill created in the graph, which could also be created in another size.
    """

    shape: tuple[int, ...]
    families: Sequence[Family] = ()
    zero: bool = True
    wild: bool = False

    @property
    def rank(self) -> int:
        """How many dims it has."""
        return len(self.shape)


def family_of(labels: Tensor) -> Family:
    """Find the dims along which full labels vary, and keep only those."""
    dims = list(range(labels.dim()))
    if not labels.numel():
        return Family((), torch.zeros((), dtype=torch.int64))  # of an empty tensor; it is never read
    for axis in reversed(range(labels.dim())):
        if labels.shape[axis] == 1 or labels.stride(axis) == 0:
            labels = labels.select(axis, 0)
            del dims[axis]
    for axis in reversed(range(labels.dim())):
        first = labels.select(axis, 0)
        if torch.equal(first.unsqueeze(axis).expand_as(labels), labels):
            labels = first
            del dims[axis]
    return Family(tuple(dims), labels)


def reshape_family(family: Family, old: tuple[int, ...], new: tuple[int, ...]) -> Family:
    """The family after a reshape; unchanged dims cost nothing."""
    if len(family.dims) == 1:
        (dim,) = family.dims
        before = math.prod(old[:dim])
        for other, size in enumerate(new):
            if size == old[dim] and math.prod(new[:other]) == before:
                return Family((other,), family.labels)
    return family_of(family.full(old).reshape(new))
