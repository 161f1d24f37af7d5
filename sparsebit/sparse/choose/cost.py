"""The cost of a model with some channels removed, without building it: parameters and multiply-accumulates."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor
from torch.fx import GraphModule

from sparsebit.errors import SparsebitError
from sparsebit.graph.ops import OpCall, bind
from sparsebit.sparse.channels.group import ChannelGroups, Slice
from sparsebit.sparse.channels.trace import tensors_of
from sparsebit.sparse.shrink import make_plan
from sparsebit.sparse.shrink.graph import resize

Kept = Mapping[str, Tensor]  # group name -> bool [channels]


class ChoiceCost:
    """Costs of a graph for any choice of channels, exact from the remaining sizes."""

    def __init__(self, gm: GraphModule, groups: ChannelGroups) -> None:
        """Analyse the graph once; ``params`` and ``macs`` then take microseconds per tensor.

        Products of two activations (attention) also need a plan.
        """
        self.gm, self.groups = gm, groups
        tensors = tensors_of(gm)
        first: dict[int, str] = {}
        self.alias = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
        self.shapes = {name: tuple(tensors[name].shape) for name in dict.fromkeys(self.alias.values())}
        self.parameters = [self.alias[name] for name, _ in gm.named_parameters()]
        self.slices: dict[str, list[tuple[str, Slice]]] = {}
        for group in groups:
            for where in group.slices:
                self.slices.setdefault(self.alias[where.tensor], []).append((group.name, where))
        self.weighted: list[tuple[int, tuple[str, ...]]] = []  # macs, weights they come from
        self.free: list[tuple[int, OpCall]] = []  # macs of products of activations
        self.shapes_known = True
        for node in gm.graph.nodes:
            call = bind(gm, node) if node.op.startswith("call_") else None
            if call is None or call.spec.macs is None:
                continue
            try:
                macs = call.macs
            except SparsebitError:  # captured without example inputs
                self.shapes_known = False
                continue
            if call.spec.family == "rnn" and call.module is not None:
                named = call.module.named_parameters()
                weights = tuple(self.alias[f"{node.target}.{name}"] for name, p in named if p.ndim == 2)
            else:
                weights = (self.alias[call.weight_name],) if call.weight_name else ()
            if weights:
                self.weighted.append((macs, weights))
            else:
                self.free.append((macs, call))

    def params(self, kept: Kept) -> int:
        """Remaining parameter elements, shared ones once."""
        return sum(self._size(name, kept) for name in self.parameters)

    def macs(self, kept: Kept) -> int:
        """Remaining multiply-accumulates, at the sizes of the example inputs."""
        if not self.shapes_known:
            raise SparsebitError(
                "multiply-accumulates depend on the sizes of the inputs, and none are known",
                hint="pass example_inputs to SparseModel",
            )
        total = 0.0
        for macs, weights in self.weighted:
            before = sum(math.prod(self.shapes[name]) for name in weights)
            total += macs * sum(self._size(name, kept) for name in weights) / before
        return round(total) + self._free_macs(kept)

    def _free_macs(self, kept: Kept) -> int:
        if not self.free or all(bool(flags.all()) for flags in kept.values()):
            return sum(macs for macs, _ in self.free)
        sizes = make_plan(self.gm, self.groups, kept).sizes
        nodes = [node for node in self.gm.graph.nodes if node.name in sizes]
        before = [node.meta["value"] for node in nodes]
        try:
            for node in nodes:
                resize(node, sizes[node.name])
            return sum(call.macs for _, call in self.free)
        finally:
            for node, value in zip(nodes, before, strict=True):
                node.meta["value"] = value

    def _size(self, tensor: str, kept: Kept) -> int:
        shape = [float(size) for size in self.shapes[tensor]]
        for group, where in self.slices.get(tensor, ()):
            if group in kept:
                gone = int((~kept[group])[where.channel].sum())
                part = 1.0 if where.rows is None else (where.rows[1] - where.rows[0]) / self.shapes[tensor][0]
                shape[where.axis] -= gone * part
        return round(math.prod(shape))
