"""The remaining part of every tensor for a choice of channels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from sparsebit.errors import GraphError
from sparsebit.sparse.channels.group import ChannelGroups
from sparsebit.sparse.channels.labels import Family, Labels


class Alive:
    """Which positions of a tensor remain for a choice of channels."""

    def __init__(self, groups: ChannelGroups, kept: Mapping[str, Tensor]) -> None:
        trace = groups.trace
        self._roots = trace.roots.numpy()
        self._flags = np.ones(trace.sets.size, dtype=bool)  # by class
        for name, flags in kept.items():
            group = groups.by_name(name)
            group.check(flags)
            for where in group.slices:
                if where.role != "output":  # every channel is an output of some layer
                    continue
                key = (where.tensor, where.axis, 0 if where.rows is None else 1 + where.rows[0])
                labels = trace.axes[key].labels.numpy()[where.index.numpy()]
                self._flags[self._roots[labels]] = flags.numpy()[where.channel.numpy()]
        self._known: dict[tuple[int, int], Tensor | None] = {}
        self._shapes: dict[object, tuple[int, ...]] = {}
        self.nothing_goes = bool(self._flags.all())

    def of(self, labels: Tensor) -> Tensor | None:
        """bool in the shape of ``labels``: which remain; None if all do."""
        flags = self._flags[self._roots[labels.numpy()]]
        return None if flags.all() else torch.from_numpy(flags)

    def along(self, value: Labels, dim: int) -> Tensor | None:
        """bool [size]: the positions along one dim that remain; None if all do."""
        found: Tensor | None = None
        for family in value.families:
            flags = self._of(family, family.dims.index(dim)) if dim in family.dims else None
            if flags is not None:
                found = flags if found is None else found & flags
        return found

    def _of(self, family: Family, axis: int) -> Tensor | None:
        """bool along one axis of a family, or None if all remain; consecutive nodes share their families."""
        key = (id(family.labels), axis)
        if key not in self._known:
            flags = self.of(family.labels)
            others = [other for other in range(len(family.dims)) if other != axis]
            flags = flags.amax(others) if others and flags is not None else flags
            self._known[key] = None if flags is None or bool(flags.all()) else flags
        return self._known[key]

    def shape(self, value: Labels) -> tuple[int, ...]:
        """The remaining shape."""
        key = (value.shape, tuple((id(family.labels), family.dims) for family in value.families))
        if key not in self._shapes:
            self._shapes[key] = self._shape(value)
        return self._shapes[key]

    def _shape(self, value: Labels) -> tuple[int, ...]:
        shape = list(value.shape)
        for dim in {dim for family in value.families for dim in family.dims}:
            flags = self.along(value, dim)
            if flags is not None:
                shape[dim] = int(flags.sum())
        if 0 in shape and 0 not in value.shape:
            raise GraphError("nothing would be left of a tensor", expected=str(value.shape), got=str(shape))
        return tuple(shape)
