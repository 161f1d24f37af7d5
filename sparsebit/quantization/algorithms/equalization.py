"""Cross-layer equalization (Nagel et al., arXiv 1906.04721, section 4.1): ranges become equal, the function stays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.config.quantization.recovery import EqualizationSettings
from sparsebit.graph.ops import bind
from sparsebit.progress import progress
from sparsebit.quantization.algorithms.base import Algorithm, Job, Stage, register_algorithm
from sparsebit.quantization.algorithms.layers import QuantizedLayer, find_quantized_layers, sole_reader
from sparsebit.quantization.modules.weights import quantizer_at


@dataclass(frozen=True)
class Pair:
    """Two layers, and the clipping activations between them, whose limits must follow the scales."""

    first: QuantizedLayer
    second: QuantizedLayer
    clips: tuple[Node, ...]


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class Equalization(EqualizationSettings, Algorithm):
    """Equalizes the ranges of the channels of two layers, also through ReLU, PReLU and ReLU6.

    A ReLU6 becomes a ReLU with a limit for each channel, so the float model computes the same as before. Runs
    ``rounds`` times over all pairs, because a layer in the middle belongs to two pairs.
    """

    NAME = "equalization"
    stage: ClassVar[Stage] = "before"

    def apply(self, job: Job) -> None:
        """Equalize every pair."""
        pairs = find_pairs(job.gm)
        total: dict[Node, Tensor] = {}
        todo = [pair for _ in range(self.rounds) for pair in pairs]
        for pair in progress(todo, "equalizing", shown=job.shown):
            scales = _equalize(pair)
            first = pair.first.node
            total[first] = total[first] * scales if first in total else scales
        for pair in pairs:
            scales = total[pair.first.node]
            if pair.first.node.name in job.batch_norms:
                mean, std = job.batch_norms[pair.first.node.name]
                job.batch_norms[pair.first.node.name] = (mean / scales.to(mean), std / scales.to(std))
            for clip in pair.clips:
                call = bind(job.gm, clip)
                assert call is not None and call.bounds is not None
                limit_channels(job.gm, clip, _per_channel_of(pair.first, call.bounds[1] / scales))
        job.gm.graph.lint()
        job.gm.recompile()
        job.notes.append(f"equalized {len(pairs)} pairs of layers")


def find_pairs(gm: GraphModule) -> list[Pair]:
    """Layers whose result reaches exactly one other layer, channel by channel, through homogeneous operators."""
    layers = {layer.node: layer for layer in find_quantized_layers(gm)}
    pairs = []
    for layer in layers.values():
        if layer.transposed or (layer.call.groups > 1 and not layer.depthwise):
            continue
        node, clips = layer.node, list[Node]()
        while (reader := sole_reader(gm, node)) is not None and reader not in layers:
            kind = _passes(gm, reader)
            if kind is None:
                break
            clips += [reader] if kind == "clip" else []
            node = reader
        second = layers.get(reader) if reader is not None else None
        if second is None or second.transposed or _channels_in(second) != len(layer.weight):
            continue
        if second.call.groups > 1 and not second.depthwise:
            continue
        if (layer.call.spec.family == "linear") == (second.call.spec.family == "linear"):
            pairs.append(Pair(layer, second, tuple(clips)))
    return pairs


def _passes(gm: GraphModule, node: Node) -> str | None:
    if quantizer_at(gm, node) is not None:
        return "scales"
    call = bind(gm, node)
    if call is None:
        return None
    if call.homogeneous and (call.spec.elementwise or call.spec.channels in ("per_channel", "pad")):
        return "scales"
    low, high = call.bounds or (-math.inf, math.inf)
    return "clip" if low == 0 and high < math.inf else None


def _channels_in(layer: QuantizedLayer) -> int:
    return len(layer.weight) if layer.depthwise else layer.weight.shape[1] * layer.call.groups


def _equalize(pair: Pair) -> Tensor:
    """Rescale both layers; returns the divisor of the first."""
    first, second = pair.first.weight.double(), pair.second.weight.double()
    into = first.flatten(1).abs().amax(1)
    out = (
        second.flatten(1).abs().amax(1)
        if pair.second.depthwise
        else second.movedim(1, 0).flatten(1).abs().amax(1)
    )
    scales = equalizing_scales(into, out)
    bias = pair.first.bias
    pair.first.set(
        weight=first / _along(scales, first.dim(), 0), bias=None if bias is None else bias.double() / scales
    )
    pair.second.set(weight=second * _along(scales, second.dim(), 0 if pair.second.depthwise else 1))
    return scales


def equalizing_scales(first: Tensor, second: Tensor) -> Tensor:
    """s = sqrt(r1 * r2) / r2 for ranges [C] of the same channel in two layers (eq. 11).

    Dividing the first by s and multiplying the second by it makes both ranges sqrt(r1 * r2). A channel that is zero in
    either layer is not changed.

    Example:
        >>> equalizing_scales(torch.tensor([4.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 5.0]))
        tensor([2., 1., 1.])
    """
    alive = (first > 0) & (second > 0)
    scales = (first / second.clamp(min=torch.finfo(second.dtype).tiny)).sqrt()
    return torch.where(alive, scales, torch.ones_like(scales))


def _along(values: Tensor, ndim: int, axis: int) -> Tensor:
    return values.reshape([-1 if dim == axis else 1 for dim in range(ndim)])


def _per_channel_of(layer: QuantizedLayer, values: Tensor) -> Tensor:
    """One value for each channel, in a shape that broadcasts against the layer's result."""
    weight = layer.weight
    trailing = 0 if layer.call.spec.family == "linear" else weight.dim() - 2
    return values.reshape(-1, *[1] * trailing).to(weight.dtype)


def home_of_limits(clip: Node) -> str:
    """The name under which the limits of a clip are kept."""
    return f"{clip.name}_limits"


def limit_channels(gm: GraphModule, clip: Node, limits: Tensor) -> None:
    """Clip each channel at its own limit."""
    call = bind(gm, clip)
    assert call is not None
    home = home_of_limits(clip)
    gm.add_module(home, ChannelClip(limits))
    source = call.activations[0]
    with gm.graph.inserting_before(clip):
        new = gm.graph.create_node("call_module", home, (source,), {}, name=home)
    new.meta = dict(clip.meta)
    clip.replace_all_uses_with(new)
    gm.graph.erase_node(clip)


def channel_limits(gm: GraphModule, node: Node) -> Tensor | None:
    """The limits that ``limit_channels`` gave to a node, if it did."""
    module = gm.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module.limits if isinstance(module, ChannelClip) else None


class ChannelClip(nn.Module):
    """ReLU with a limit for each channel."""

    limits: Tensor

    def __init__(self, limits: Tensor) -> None:
        super().__init__()
        self.register_buffer("limits", limits)

    def forward(self, x: Tensor) -> Tensor:
        """min(max(x, 0), limit)."""
        return torch.minimum(torch.relu(x), self.limits)
