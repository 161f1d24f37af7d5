"""What a model would cost with some units gone, without building it: parameters and multiply-accumulates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.fx import GraphModule

from sparsebit.errors import SparsebitError
from sparsebit.graph.ops import bind
from sparsebit.sparse.channels.group import Group, Slice
from sparsebit.sparse.layers import tensors_of

Kept = Mapping[str, Tensor]  # group name -> bool [units]


class ChoiceCost:
    """Costs of a graph for any choice of units, exact wherever a weight is multiplied.

    A product of two activations (attention) is scaled by the part of the units that its operands keep.
    """

    def __init__(self, gm: GraphModule, groups: Sequence[Group]) -> None:
        """Look at the graph once; ``params`` and ``macs`` then take microseconds a tensor."""
        tensors = tensors_of(gm)
        first: dict[int, str] = {}
        self.alias = {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}
        self.shapes = {name: tuple(tensors[name].shape) for name in dict.fromkeys(self.alias.values())}
        self.parameters = [self.alias[name] for name, _ in gm.named_parameters()]
        self.slices: dict[str, list[tuple[str, Slice]]] = {}
        carried: dict[str, list[str]] = {}
        for group in groups:
            for where in group.slices:
                self.slices.setdefault(self.alias[where.tensor], []).append((group.name, where))
            for node in group.nodes:
                carried.setdefault(node, []).append(group.name)
        self.weighted: list[tuple[int, tuple[str, ...]]] = []  # macs, weights they come from
        self.free: list[tuple[int, tuple[str, ...]]] = []  # macs, groups of the operands
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
                names = [name for source in node.all_input_nodes for name in carried.get(source.name, ())]
                self.free.append((macs, tuple(dict.fromkeys(names))))

    def params(self, kept: Kept) -> int:
        """Parameter elements that are left, shared ones once."""
        return sum(self._size(name, kept) for name in self.parameters)

    def macs(self, kept: Kept) -> int:
        """Multiply-accumulates that are left, at the sizes of the example inputs."""
        if not self.shapes_known:
            raise SparsebitError(
                "multiply-accumulates follow from shapes, and none are recorded",
                hint="give SparseModel example_inputs",
            )
        total = 0.0
        for macs, weights in self.weighted:
            before = sum(math.prod(self.shapes[name]) for name in weights)
            total += macs * sum(self._size(name, kept) for name in weights) / before
        for macs, groups in self.free:
            total += macs * math.prod(
                float(kept[name].float().mean()) if name in kept else 1.0 for name in groups
            )
        return round(total)

    def _size(self, tensor: str, kept: Kept) -> int:
        shape = [float(size) for size in self.shapes[tensor]]
        for group, where in self.slices.get(tensor, ()):
            if group in kept:
                gone = int((~kept[group])[where.unit].sum())
                part = 1.0 if where.rows is None else (where.rows[1] - where.rows[0]) / self.shapes[tensor][0]
                shape[where.axis] -= gone * part
        return round(math.prod(shape))
