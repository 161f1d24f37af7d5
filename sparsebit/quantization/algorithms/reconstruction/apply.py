"""AdaRound and BRECQ: traverse the graph, reconstruct each part, save finished parts."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of, to_device
from sparsebit.config.quantization.recovery import AdaRoundSettings, ReconstructionSettings
from sparsebit.graph.run import evaluating, requiring_grad
from sparsebit.numerics import Grid
from sparsebit.numerics.finite import is_finite
from sparsebit.numerics.snapping import snap_tensor
from sparsebit.processes import raise_together
from sparsebit.progress import progress
from sparsebit.quantization.algorithms.base import Algorithm, Job, register_algorithm
from sparsebit.quantization.algorithms.reconstruction.blocks import Block, Granularity, extract, find_blocks
from sparsebit.quantization.algorithms.reconstruction.core import (
    SoftWeights,
    Unit,
    beta_at,
    drop,
    find_units,
    reconstruction_error,
    undecided,
)
from sparsebit.quantization.algorithms.reconstruction.finished_blocks import FinishedBlocks
from sparsebit.quantization.algorithms.reconstruction.steps import Schedule, run_steps
from sparsebit.quantization.algorithms.reconstruction.streams import Samples, Streams
from sparsebit.quantization.modules.exchange import exchange_quantizer, is_plain
from sparsebit.quantization.quantizers import AdaRound, Quantizer
from sparsebit.quantization.switches import substituted, switched

log = logging.getLogger(__name__)
_UNSEEN = itertools.repeat(0)  # a constant clock, when progress is not shown


@dataclass(frozen=True, kw_only=True)
class Reconstruction(ReconstructionSettings, Algorithm):
    """The base of AdaRound and BRECQ: part by part, the rounding of weights is trained to match the float model."""

    granularity: ClassVar[Granularity] = "block"

    def apply(self, job: Job) -> None:
        """Reconstruct one part after the other, each on the outputs of the finished ones."""
        to_adaround(job)
        frozen = [p for p in job.gm.parameters() if p.requires_grad]
        with (
            evaluating(job.gm),
            torch.enable_grad(),
            requiring_grad(frozen, False),
            switched(job.quantizers.values(), True),
        ):
            self._apply(job)

    def _apply(self, job: Job) -> None:
        blocks = find_blocks(job.gm, self.granularity, self.largest)
        finished = FinishedBlocks(job, self.NAME, asdict(self), blocks)
        device = device_of(job.gm)
        inputs = (to_device(call, device) for call in job.inputs)
        streams = Streams(job.gm, inputs, blocks, self.batch)
        weights = [[n for n in block.weights if isinstance(job.quantizers[n], AdaRound)] for block in blocks]
        todo = range(sum(map(bool, weights)) * self.steps)
        with contextlib.closing(progress(todo, f"{self.NAME}: rebuilding", shown=job.shown)) as ticks:
            for index, block in enumerate(blocks):
                module = extract(job.gm, block)
                streams.targets(block, module, job.quantizers.values())
                if weights[index] and finished.restore(index):
                    collections.deque(itertools.islice(ticks, self.steps), maxlen=0)
                elif weights[index]:
                    start = time.perf_counter()
                    errors = self._rebuild(job, index, block, module, streams, weights[index], ticks)
                    finished.write(index)
                    if errors is not None:
                        what = f"{self.NAME}: block {index + 1} of {len(blocks)}, {block.name}"
                        seconds = time.perf_counter() - start
                        log.info("%s: error %.3g before, %.3g after %.1f s", what, *errors, seconds)
                streams.advance(index, block, module)
                raise_together(None)  # all processes do the same: one that has failed ends the others here

    def _rebuild(
        self,
        job: Job,
        index: int,
        block: Block,
        module: nn.Module,
        streams: Streams,
        weights: list[str],
        ticks: Iterator[int] = _UNSEEN,
    ) -> tuple[float, float] | None:
        """Learn the rounding of a block's weights, kept if better than nearest rounding; returns both errors."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        samples = Samples(streams, block, module, job.quantizers.values(), self.batch, generator)
        if not any(map(_is_float, samples.wanted[0])):
            return None  # its result is integers, such as a class: there is no error to minimize
        tensors = {name: tensor for name, _, tensor in job.weights()}
        soft = SoftWeights.of([_weight(job.quantizers[name], tensors[name]) for name in weights])
        inside = [q for q in module.modules() if isinstance(q, Quantizer) and q.side == "A" and q.is_enable]
        scales = {q: q.scale.detach().clone().requires_grad_() for q in inside if _learns(q)}
        units = find_units(samples.wanted)
        columns = zip(*samples.exact, strict=True)
        infinite = [not all(is_finite(x) for x in column if _is_float(x)) for column in columns]
        before = _error(module, samples, units)
        noise = torch.Generator(soft.v.device).manual_seed(self.seed * 1_000_003 + index)
        optimizer = _Optimizer(soft.v, self.lr, list(scales.values()) if self.scale_lr > 0 else [])
        current: dict[str, Tensor] = {}

        def step(rows: Tensor | None, beta: float | Tensor | None) -> bool:
            exact, rounded, wanted = samples.take(rows)
            taken, h = soft.soft()
            current.update(zip(weights, taken, strict=True))
            inputs = zip(rounded, exact, infinite, strict=True)
            mixed = [drop(r, e, self.drop, noise, infinite=i) if _is_float(r) else r for r, e, i in inputs]
            results = module(*mixed)
            if not any(isinstance(result, Tensor) and result.requires_grad for result in results):
                return False  # its weights do not affect its result, so nearest rounding is as good
            loss = reconstruction_error(results, wanted, units)
            if beta is not None:
                loss = loss + self.regularization * undecided(h, beta)
            optimizer.step(loss)
            return True

        schedule = self._schedule(samples.draw(self.steps), optimizer.rate)
        learning = [*inside, *(job.quantizers[name] for name in weights)]
        with substituted(learning, self._substitute(scales, current, noise)):
            if not run_steps(step, schedule, optimizer.set_rate, noise, ticks):
                return None
        own = {name: quantizer for name in weights if isinstance(quantizer := job.quantizers[name], AdaRound)}
        grids = {quantizer: quantizer.scale.detach().clone() for quantizer in scales}
        for quantizer, up in zip(own.values(), soft.up(), strict=True):
            quantizer.up = up
        for quantizer, scale in scales.items():
            quantizer.set_grid(scale.detach().abs(), quantizer.zero_point)
        after = _error(module, samples, units)
        if not after <= before:  # NaN counts as worse; keep nearest rounding
            for name, quantizer in own.items():
                quantizer.up = quantizer.nearest(tensors[name])
            for quantizer, scale in grids.items():
                quantizer.set_grid(scale, quantizer.zero_point)
        return before, after

    def _schedule(self, rows: Tensor | None, rate: Tensor | None) -> Schedule:
        done = [position / self.steps for position in range(self.steps)]
        betas = [beta_at(part, self.warmup) for part in done]
        return Schedule(
            rows, betas, [self.scale_lr * 0.5 * (1 + math.cos(math.pi * part)) for part in done], rate
        )

    def _substitute(
        self, scales: dict[Quantizer, Tensor], current: dict[str, Tensor], noise: torch.Generator
    ) -> Callable[[Quantizer, Tensor], Tensor]:
        """Replace quantizers during training: weights use soft rounding, activations are quantized at random.

        ``scales`` are those of activations that learn.
        """

        def snap(quantizer: Quantizer, x: Tensor) -> Tensor:
            if quantizer.side == "W":
                return current[quantizer.name].to(x.dtype)
            if quantizer in scales and self.scale_lr > 0:
                x, scale, code = quantizer.prepare(x), scales[quantizer], quantizer.code
                _, zero_point = quantizer.scale_and_zero_point(x)
                factor = 1 / math.sqrt(max(x.numel() / scale.numel(), 1) * max(code.high, 1))
                layout = quantizer.layout_of(x)
                snapped = snap_tensor(x, scale, zero_point, code, layout, factor, magnitude=True)
            else:
                snapped = quantizer.snap(x)
            return drop(snapped, x, self.drop, noise)

        return snap


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class Brecq(Reconstruction):
    """Block by block, with QDrop."""

    NAME = "brecq"


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class AdaRoundLayers(AdaRoundSettings, Reconstruction):
    """Layer by layer, with unchanged activations."""

    NAME = "adaround"
    granularity = "layer"


class _Optimizer:
    """Adam for the rounding of weights, and for the scales of activations with a learning rate that falls."""

    def __init__(self, v: Tensor, lr: float, scales: list[Tensor]) -> None:
        cuda = v.device.type == "cuda"
        self.rate = torch.zeros((), device=v.device) if cuda and scales else None
        self._parameters = [v, *scales]
        groups: list[dict[str, Any]] = [{"params": [v], "lr": lr}]
        if scales:
            groups.append({"params": scales, "lr": 0.0 if self.rate is None else self.rate})
        # capturable: how many steps there were is counted on the device, so that steps can be recorded.
        self._adam = torch.optim.Adam(groups, fused=cuda or v.device.type == "cpu", capturable=cuda)

    def set_rate(self, rate: float) -> None:
        """The learning rate of scales from now on."""
        if self.rate is not None:
            self.rate.fill_(rate)
        elif len(self._adam.param_groups) > 1:
            self._adam.param_groups[1]["lr"] = rate

    def step(self, loss: Tensor) -> None:
        """One step down."""
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, found, strict=True):
            parameter.grad = gradient
        self._adam.step()


def to_adaround(job: Job) -> None:
    """Let plain quantizers of weights choose their rounding; the grid stays."""
    for name, quantizer in job.quantizers.items():
        if quantizer.side == "W" and is_plain(quantizer) and quantizer.spec.dtype == "int":
            job.quantizers[name] = exchange_quantizer(job.gm, quantizer, AdaRound)


def _learns(quantizer: Quantizer) -> bool:
    return quantizer.layout.kind != "token" and quantizer.spec.dtype == "int" and quantizer.scale.numel() > 0


def _weight(quantizer: Quantizer, tensor: Tensor) -> tuple[Tensor, Grid]:
    return tensor.detach().float(), quantizer.grid().detach()


@torch.no_grad()
def _error(module: nn.Module, samples: Samples, units: list[Unit]) -> float:
    """The current error of a block, over all samples and all its floating-point results."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for rounded, wanted in samples.all():
        results = module(*rounded)
        picked = [
            (result, exact, unit)
            for result, exact, unit in zip(results, wanted, units, strict=True)
            if _is_float(result)
        ]
        error = reconstruction_error(*map(list, zip(*picked, strict=True)))
        size = len(picked[0][0]) if picked[0][0].dim() else 1
        total, count = total.to(error.device) + error.double() * size, count + size
    return float(total) / max(count, 1)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
