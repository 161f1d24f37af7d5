"""Run a pruned model at its smaller size while its parameters are still whole.

Zeros are not always the same as absence: a layer norm over channels counts the zeros, and a weight norm divides by the
length of a zero row. There the shrunk graph is run on the kept parts of the whole parameters. Gradients reach the
parameters, buffers are written back, and what is trained is exactly what ``shrink`` will give.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.func import functional_call

from sparsebit.graph.capture import CapturedModule
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.evidence.batch import fit
from sparsebit.sparse.evidence.gather import evaluating
from sparsebit.sparse.layer_sparser import detach
from sparsebit.sparse.shrink import ShrinkPlan, shrink_graph
from sparsebit.sparse.shrink.alive import Alive

Call = tuple[tuple[Any, ...], dict[str, Any]]


class CompactCall:
    """The shrunk graph, fed from the parameters and buffers of the whole one."""

    def __init__(self, gm: CapturedModule, plan: ShrinkPlan, groups: ChannelGroups) -> None:
        self.gm, self.plan, self.groups = gm, plan, groups
        self.small = shrink_graph(gm, plan)
        detach(self.small)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the whole model would be called."""
        for small, whole in zip(self.small.modules(), self.gm.modules(), strict=True):
            small.training = whole.training
        tensors = {
            name: self._cut(name, self.gm.get_parameter(name)) for name, _ in self.small.named_parameters()
        }
        buffers = {name: self._cut(name, self.gm.get_buffer(name)) for name, _ in self.small.named_buffers()}
        self._feed_recurrent(tensors)
        output = functional_call(self.small, {**tensors, **buffers}, args, kwargs)
        for name, buffer in buffers.items():
            if self.plan.changes(name):
                self._write_back(name, buffer)
        return output

    def snapshot(self) -> CapturedModule:
        """The shrunk graph with the parameters of this moment, to be looked into."""
        return shrink_graph(self.gm, self.plan)

    def spread(self, node: str, axis: int, numbers: Tensor) -> Tensor:
        """Numbers along an axis of a node's small result, in the places of the whole one; 0 elsewhere."""
        labels = self.groups.trace.values.get(node)
        flags = self._alive.along(labels, axis % len(labels.shape)) if isinstance(labels, Labels) else None
        if flags is None:
            return numbers
        whole = numbers.new_zeros(len(flags))
        whole[flags.to(numbers.device)] = numbers
        return whole

    @functools.cached_property
    def _alive(self) -> Alive:
        return Alive(self.groups, self.plan.kept)

    def _cut(self, name: str, tensor: Tensor) -> Tensor:
        return self.plan.cut(name, tensor) if self.plan.changes(name) else tensor

    def _feed_recurrent(self, tensors: dict[str, Tensor]) -> None:
        """Recurrent layers keep a list of their weights, which a functional call does not know of."""
        for path, module in self.small.named_modules():
            if isinstance(module, nn.RNNBase):
                names = module._flat_weights_names
                module.__dict__["_flat_weights"] = [tensors[f"{path}.{name}"] for name in names]

    @torch.no_grad()
    def _write_back(self, name: str, buffer: Tensor) -> None:
        whole = self.gm.get_buffer(name)
        axes = self.plan.index.get(self.plan.aliases.get(name, name), {})
        if len(axes) == 1 and whole.is_floating_point():
            ((axis, where),) = axes.items()
            whole.index_copy_(axis, where.to(whole.device), buffer)


def compact_where_needed(
    gm: CapturedModule, plan: ShrinkPlan, groups: ChannelGroups, example: Call
) -> CompactCall | None:
    """The compact call, or None where the whole model with zeros computes the same on the example inputs."""
    if not plan.index and not plan.columns:
        return None
    compact = CompactCall(gm, plan, groups)
    args, kwargs = fit(example, next(gm.parameters()))
    try:
        with torch.no_grad(), evaluating(gm):
            whole, small = gm(*args, **kwargs), compact(*args, **kwargs)
    except Exception:  # whatever is in the way of comparing, the compact call is right
        return compact
    pairs = zip(pytree.tree_leaves(whole), pytree.tree_leaves(small), strict=True)
    return None if all(_same(one, other) for one, other in pairs) else compact


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not one.is_floating_point():
        return True
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(one.dtype, 1e-2)
    apart = (one.double() - other.double()).abs().max() if one.numel() else torch.zeros(())
    scale = other.double().abs().max() if one.numel() else torch.ones(())
    return bool(apart <= tolerance * scale.clamp(min=1e-12))  # false for NaN
