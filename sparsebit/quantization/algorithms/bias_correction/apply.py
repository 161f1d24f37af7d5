"""Give each layer back the mean that rounding took from its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.fx import Node

from sparsebit.config.quantization.recovery import BiasCorrectionSettings
from sparsebit.graph.ops import bind
from sparsebit.progress import progress
from sparsebit.quantization.algorithms.base import Algorithm, Job, register_algorithm
from sparsebit.quantization.algorithms.bias_correction.core import clipped_normal_mean, shift_of
from sparsebit.quantization.algorithms.equalization.apply import channel_limits
from sparsebit.quantization.algorithms.layers import (
    Layer,
    channel_axis,
    find_layers,
    is_quantizer,
    per_channel,
)
from sparsebit.quantization.algorithms.reconstruction.blocks import Block, extract, find_blocks
from sparsebit.quantization.algorithms.reconstruction.streams import Streams
from sparsebit.quantization.switches import switched

CHUNK = 64


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class BiasCorrection(BiasCorrectionSettings, Algorithm):
    """Adds to each bias what the mean of the layer's result has moved by.

    ``empirical`` measures both means on the calibration data, layer after layer, behind what is already corrected.
    ``analytic`` needs no data: the inputs' means follow from the batch norm (folded since) and the activation in front.
    """

    NAME = "bias_correction"

    def apply(self, job: Job) -> None:
        """Correct every layer."""
        layers = {layer.node: layer for layer in find_layers(job.gm) if not layer.transposed}
        if self.method == "analytic":
            _analytic(job, layers)
        else:
            _empirical(job, layers)


def _correct(job: Job, layer: Layer, shift: Tensor) -> None:
    bias = layer.bias
    name = layer.set(bias=shift if bias is None else bias.double() + shift).call.bias_name
    assert name is not None
    job.shifts[name] = job.shifts[name] + shift if name in job.shifts else shift


def _empirical(job: Job, layers: dict[Node, Layer]) -> None:
    blocks = find_blocks(job.gm, "layer")
    quantizers = job.quantizers.values()
    with switched(quantizers, True):
        streams = Streams(job.gm, job.inputs, blocks, CHUNK)
        for index, block in enumerate(progress(blocks, "correcting biases", shown=job.shown)):
            module = extract(job.gm, block)
            streams.targets(block, module, quantizers)
            for node in block.nodes:
                if node in layers:
                    _correct(job, layers[node], _measured_shift(job, block, node, layers[node], streams))
                    module = extract(job.gm, block)
            streams.advance(index, block, module)


def _measured_shift(job: Job, block: Block, node: Node, layer: Layer, streams: Streams) -> Tensor:
    """Mean of the float result minus mean of the quantized one, for each channel."""
    cut = block.nodes[: block.nodes.index(node) + 1]
    part = extract(job.gm, replace(block, nodes=cut, outputs=(node,)))
    means = []
    for stream, on in ((streams.exact, False), (streams.rounded, True)):
        total, count = torch.zeros(()), 0
        with torch.no_grad(), switched(job.quantizers.values(), on):
            for values in stream:
                (result,) = part(*(values[source] for source in block.inputs))
                axis = channel_axis(layer, result.dim())
                sums = per_channel(result, axis, lambda rows: rows.double().sum(1))
                total = total.to(sums.device) + sums
                count += result.numel() // len(sums)
        means.append(total / max(count, 1))
    return means[0] - means[1]


def _analytic(job: Job, layers: dict[Node, Layer]) -> None:
    corrected = 0
    statistics = job.batch_norms
    for layer in progress(list(layers.values()), "correcting biases", shown=job.shown):
        mean = _expected_input(job, layer, statistics)
        if mean is None or mean.numel() != layer.weight.shape[1] * layer.groups:
            continue
        error = layer.quantizer.snap(layer.weight).double() - layer.weight.double()
        _correct(job, layer, -shift_of(error, mean.to(error), layer.groups))
        corrected += 1
    job.notes.append(f"corrected {corrected} of {len(layers)} biases from batch norm")


def _expected_input(job: Job, layer: Layer, statistics: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor | None:
    """The mean of what a layer reads, from the batch norm that was folded into the layer before it."""
    low, high = -math.inf, torch.tensor(math.inf)
    source = layer.call.activations[0]
    for _ in range(8):
        call = bind(job.gm, source) if source.op.startswith("call_") else None
        if source.name in statistics:
            mean, std = statistics[source.name]
            return (
                clipped_normal_mean(mean.double(), std.double().abs(), low, high)
                if low == 0
                else mean.double()
            )
        if is_quantizer(job.gm, source):
            (source,) = source.all_input_nodes
        elif call is not None and call.bounds is not None and call.bounds[0] == 0:
            low, high = 0.0, torch.minimum(high, torch.tensor(call.bounds[1]))
            source = call.activations[0]
        elif (limits := channel_limits(job.gm, source)) is not None:
            low, high = 0.0, torch.minimum(high.to(limits), limits.flatten())
            (source,) = source.all_input_nodes
        else:
            return None
    return None
