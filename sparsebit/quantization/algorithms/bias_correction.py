"""Restore the mean of each layer's result, which rounding changed (Nagel et al., arXiv 1906.04721, section 4.2)."""

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
from sparsebit.quantization.algorithms.equalization import channel_limits
from sparsebit.quantization.algorithms.layers import (
    QuantizedLayer,
    find_quantized_layers,
    per_channel,
    result_axis,
)
from sparsebit.quantization.algorithms.reconstruction.blocks import Block, extract, find_blocks
from sparsebit.quantization.algorithms.reconstruction.streams import Streams
from sparsebit.quantization.modules.weights import quantizer_at
from sparsebit.quantization.switches import switched

CHUNK = 64


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class BiasCorrection(BiasCorrectionSettings, Algorithm):
    """Corrects each bias by the change of the mean of the layer's result.

    ``empirical`` measures both means on the calibration data, layer after layer, with earlier layers already corrected.
    ``analytic`` needs no data: the means of the inputs are computed from the folded batch norm and the activation.
    """

    NAME = "bias_correction"

    def apply(self, job: Job) -> None:
        """Correct every layer."""
        layers = {layer.node: layer for layer in find_quantized_layers(job.gm) if not layer.transposed}
        if self.method == "analytic":
            _analytic(job, layers)
        else:
            _empirical(job, layers)


def _correct(job: Job, layer: QuantizedLayer, shift: Tensor) -> None:
    bias = layer.bias
    name = layer.set(bias=shift if bias is None else bias.double() + shift).call.bias_name
    assert name is not None
    job.shifts[name] = job.shifts[name] + shift if name in job.shifts else shift


def _empirical(job: Job, layers: dict[Node, QuantizedLayer]) -> None:
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


def _measured_shift(job: Job, block: Block, node: Node, layer: QuantizedLayer, streams: Streams) -> Tensor:
    """Mean of the float result minus mean of the quantized one, for each channel."""
    cut = block.nodes[: block.nodes.index(node) + 1]
    part = extract(job.gm, replace(block, nodes=cut, outputs=(node,)))
    means = []
    for stream, on in ((streams.exact, False), (streams.rounded, True)):
        total, count = torch.zeros(()), 0
        with torch.no_grad(), switched(job.quantizers.values(), on):
            for values in stream:
                (result,) = part(*(values[source] for source in block.inputs))
                axis = result_axis(layer, result.dim())
                sums = per_channel(result, axis, lambda rows: rows.double().sum(1))
                total = total.to(sums.device) + sums
                count += result.numel() // len(sums)
        means.append(total / max(count, 1))
    return means[0] - means[1]


def _analytic(job: Job, layers: dict[Node, QuantizedLayer]) -> None:
    corrected = 0
    statistics = job.batch_norms
    for layer in progress(list(layers.values()), "correcting biases", shown=job.shown):
        mean = _expected_input(job, layer, statistics)
        if mean is None or mean.numel() != layer.weight.shape[1] * layer.call.groups:
            continue
        error = layer.quantizer.snap(layer.weight).double() - layer.weight.double()
        _correct(job, layer, -shift_of(error, mean.to(error), layer.call.groups))
        corrected += 1
    job.notes.append(f"corrected {corrected} of {len(layers)} biases from batch norm")


def _expected_input(
    job: Job, layer: QuantizedLayer, statistics: Mapping[str, tuple[Tensor, Tensor]]
) -> Tensor | None:
    """The mean of a layer's input, from the batch norm that was folded into the layer before it."""
    low, high = -math.inf, torch.tensor(math.inf)
    source = layer.call.activations[0]
    for _ in range(8):
        call = bind(job.gm, source) if source.op.startswith("call_") else None
        if source.name in statistics:
            mean, std = statistics[source.name]
            mean, std = mean.double(), std.double().abs()
            return clipped_normal_mean(mean, std, low, high) if low == 0 else mean
        if quantizer_at(job.gm, source) is not None:
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


def clipped_normal_mean(
    mean: Tensor, std: Tensor, low: float = 0.0, high: float | Tensor = math.inf
) -> Tensor:
    """The mean of a normal variable that is clipped to [low, high] (eq. 38 of its appendix).

    Example:
        >>> clipped_normal_mean(torch.tensor([0.0, 5.0]), torch.tensor([1.0, 0.1]))
        tensor([0.3989, 5.0000])
    """
    std = std.clamp(min=1e-12)
    high = torch.as_tensor(high).to(mean)
    a, b = (low - mean) / std, (high - mean) / std
    below: Tensor = torch.special.ndtr(a)  # the probability of a standard normal
    above: Tensor = torch.special.ndtr(-b)
    densities = [torch.exp(-end.square() / 2) / math.sqrt(2 * math.pi) for end in (a, b)]
    inside = mean * (1 - below - above) + std * (densities[0] - densities[1])
    upper = torch.where(high.isfinite(), above * high, torch.zeros_like(above))
    return inside + below * low + upper


def shift_of(weight_error: Tensor, input_mean: Tensor, groups: int = 1) -> Tensor:
    """The change of each output's mean due to an error of the weight [O, I / groups, ...], given the inputs' means."""
    per_input = weight_error.flatten(2).sum(2) if weight_error.dim() > 2 else weight_error
    rows = input_mean.reshape(groups, -1).repeat_interleave(len(weight_error) // groups, dim=0)
    return (per_input * rows).sum(1)
