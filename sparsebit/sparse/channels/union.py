"""Disjoint sets of labels, joined and looked up an array at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class UnionFind:
    """Labels 0, 1, 2, ... in classes; the smallest label of a class stands for it.

    Example:
        >>> sets = UnionFind()
        >>> a, b = sets.fresh(3), sets.fresh(3)
        >>> sets.join(a, b)
        >>> sets.find(b)
        tensor([0, 1, 2])
    """

    def __init__(self) -> None:
        self._parent = np.arange(1024, dtype=np.int64)
        self.size = 0
        self.version = 0  # how often classes were merged: lookups at this version are still valid

    def fresh(self, count: int) -> Tensor:
        """New labels, each its own class: int64 [count]."""
        start, self.size = self.size, self.size + count
        if self.size > len(self._parent):
            grown = np.arange(max(self.size, 2 * len(self._parent)), dtype=np.int64)
            grown[: len(self._parent)] = self._parent
            self._parent = grown
        return torch.arange(start, self.size)

    def find(self, labels: Tensor) -> Tensor:
        """The class of every label, in the shape given."""
        return torch.from_numpy(np.asarray(self._find(labels.numpy())))

    def join(self, left: Tensor, right: Tensor) -> None:
        """Merge the classes of ``left[i]`` and ``right[i]`` for all i; the shapes broadcast."""
        pair = np.broadcast_arrays(left.numpy(), right.numpy())
        a, b = pair[0].ravel(), pair[1].ravel()
        while True:
            a, b = self._find(a), self._find(b)
            apart = a != b
            if not apart.any():
                return
            self.version += 1
            a, b = a[apart], b[apart]
            # Attach every larger root to the smallest root it is paired with; the rest is handled in the next round.
            np.minimum.at(self._parent, np.maximum(a, b), np.minimum(a, b))

    def roots(self) -> Tensor:
        """The class of every label there is: int64 [size]."""
        return self.find(torch.arange(self.size))

    def _find(self, labels: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._parent[labels]
        while True:
            above = self._parent[found]
            if np.array_equal(above, found):
                self._parent[labels] = found
                return found
            found = above
