"""What each recorded value depends on: the inputs' numbers, random numbers, or the inputs' sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

from sparsebit.graph.ops import OpSpec


class Origins:
    """Sets of nodes, updated as each node is recorded."""

    def __init__(self) -> None:
        self.data: set[fx.Node] = set()  # depends on the numbers in the inputs
        self.random: set[fx.Node] = set()
        self.counted: set[fx.Node] = set()  # has as many rows as the data say
        self.data_shaped: set[fx.Node] = set()  # comes from something that has
        self._readers: dict[Any, bool] = {}

    def inherit(self, node: fx.Node, spec: OpSpec | None, sources: Iterable[fx.Node]) -> None:
        """Derive the origins of a result from the operator and its inputs; for unknown operators assume the worst."""
        given = set(sources)
        if given & self.data and (spec is None or spec.activations or spec.effect):
            self.data.add(node)
        if spec is not None and spec.random:
            node.meta["random"] = True
        if given & self.random or "random" in node.meta:
            self.random.add(node)
        if spec is not None and spec.is_data_sized(node):
            self.counted.add(node)
        if node in self.counted or given & self.data_shaped:
            self.data_shaped.add(node)

    def copy(self, source: fx.Node, node: fx.Node) -> None:
        """A part of a value, or the value itself in another node."""
        for group in (self.data, self.random, self.counted, self.data_shaped):
            if source in group:
                group.add(node)

    def reads_numbers(self, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether a function returns a Python value that depends on a tensor's numbers; without numbers it fails."""
        if function not in self._readers:
            args, kwargs = pytree.tree_map_only(Tensor, _without_numbers, (args, kwargs))
            try:
                function(*args, **kwargs)
            except Exception:  # any error means that it needs more than type and layout
                self._readers[function] = True
            else:
                self._readers[function] = False
        return self._readers[function]


def _without_numbers(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
