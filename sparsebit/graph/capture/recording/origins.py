"""What is known of each recorded value: does it depend on the inputs' numbers, on chance, on the inputs' sizes?"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, fx

# Tensors made by these depend on the shape of their tensor argument, not on its numbers.
_SHAPE_ONLY = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty"),
    *("new_full", "new_tensor", "size", "numel"),
}
_RANDOM = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli"),
    *("normal", "uniform", "exponential", "geometric", "log_normal", "cauchy", "random", "multinomial"),
    *("poisson", "binomial", "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d"),
    *("dropout3d", "rrelu"),
}
_DATA_SHAPED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount"}


class Origins:
    """Sets of nodes, kept up as each node is recorded."""

    def __init__(self) -> None:
        self.data: set[fx.Node] = set()  # depends on the numbers in the inputs
        self.random: set[fx.Node] = set()
        self.counted: set[fx.Node] = set()  # has as many rows as the data say
        self.data_shaped: set[fx.Node] = set()  # comes from something that has

    def inherit(self, node: fx.Node, name: str, tensors: list[Tensor], sources: Iterable[fx.Node]) -> None:
        """Conclude from an operator's name and inputs."""
        given = set(sources)
        if name not in _SHAPE_ONLY and given & self.data:
            self.data.add(node)
        if name.removesuffix("_") in _RANDOM or given & self.random:
            self.random.add(node)
            node.meta["random"] = True
        masked = name == "__getitem__" and any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])
        repeated = name == "repeat_interleave" and len(tensors) > 1
        if name in _DATA_SHAPED or masked or repeated or (name == "where" and len(tensors) == 1):
            self.counted.add(node)
        if node in self.counted or given & self.data_shaped:
            self.data_shaped.add(node)

    def copy(self, source: fx.Node, node: fx.Node) -> None:
        """A part of a value, or the value itself in another node."""
        for group in (self.data, self.random, self.counted, self.data_shaped):
            if source in group:
                group.add(node)
