"""What does a step of reconstruction cost, and a whole run?

ResNet-20, W4A4, blocks as the library finds them. Every block is rebuilt for a few steps by the library and by an eager
loop over the same block, data and equations, in turns: the loop keeps one tensor of rounding variables per layer,
spells every equation in torch operators, and lets autograd do the rest, as published implementations do. Times are
medians over rounds, the ratio is that of their sums over all blocks. The time of a whole run is extrapolated: that of
its steps, times as many as asked for, and of moving the data through the net once.

Run from the repository root: ``python -m benchmarks.recovery.step [--device cuda]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from benchmarks.environment import describe
from benchmarks.ptq.timing import Cost, cost
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.quantization.algorithms import Brecq, Job
from sparsebit.quantization.algorithms.reconstruction.apply import to_adaround
from sparsebit.quantization.algorithms.reconstruction.blocks import Block, extract, find_blocks
from sparsebit.quantization.algorithms.reconstruction.streams import Samples, Streams
from sparsebit.quantization.calibration.steps import make_job
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import switched
from tests.zoo.nets.cifar_resnet import cifar_resnet20

SEED, GOAL_SECONDS, GOAL_STEPS = 0, 300.0, 1000
ZETA, GAMMA = 1.1, -0.1

CONFIG: dict[str, Any] = {
    "BACKEND": "virtual",
    "FIRST_LAST": 8,
    "SCHEDULE": {"FUSE_BN": True},
    "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 4}},
    "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 4}},
}


class EagerLoop:
    """The same reconstruction, one tensor at a time."""

    def __init__(self, settings: Brecq) -> None:
        self.settings = settings

    def rebuild(self, job: Job, index: int, block: Block, module: nn.Module, streams: Streams) -> None:
        s, generator = self.settings, torch.Generator().manual_seed(index)
        samples = Samples(streams, block, s.batch, generator)
        floats = {name: weight.detach() for name, _, weight in job.weights()}
        v: dict[str, Tensor] = {}
        grids: dict[str, tuple[Tensor, Tensor, int, int]] = {}
        for name in block.weights:
            grid = job.quantizers[name].grid()
            scale, zero = grid.spread(floats[name].shape)
            grids[name] = (scale, zero, grid.code.low, grid.code.high)
            rest = (floats[name] / scale - (floats[name] / scale).floor()).clamp(1e-4, 1 - 1e-4)
            p = (rest - GAMMA) / (ZETA - GAMMA)
            v[name] = torch.log(p / (1 - p)).requires_grad_()
        inside = [q for q in module.modules() if isinstance(q, Quantizer) and q.side == "A" and q.is_enable]
        scales = {q: q.scale.detach().clone().requires_grad_() for q in inside}

        def weight(quantizer: Quantizer, x: Tensor) -> Tensor:
            scale, zero, low, high = grids[quantizer.name]
            h = (torch.sigmoid(v[quantizer.name]) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)
            codes = ((x / scale).floor() + h + zero).clamp(low, high)
            return (codes - zero) * scale

        def activation(quantizer: Quantizer, x: Tensor) -> Tensor:
            zero, low, high = quantizer.zero_point, quantizer.code.low, quantizer.code.high
            scale = scales[quantizer]
            scale = scale.detach() + (scale - scale.detach()) / math.sqrt(x.numel() * high)  # LSQ's gradient
            steps = x / scale
            steps = steps + (steps.round() - steps).detach()
            snapped = ((steps + zero).clamp(low, high) - zero) * scale
            return torch.where(torch.rand_like(x) < s.drop, x, snapped)

        for quantizer in [*inside, *(job.quantizers[name] for name in block.weights)]:
            quantizer.substitute = weight if quantizer.side == "W" else activation
        adam = [
            torch.optim.Adam(list(v.values()), lr=s.lr),
            torch.optim.Adam(list(scales.values()), lr=s.scale_lr),
        ]
        for step in range(s.steps):
            exact, rounded, wanted = samples.draw()
            mixed = [
                torch.where(torch.rand_like(r) < s.drop, e, r) for r, e in zip(rounded, exact, strict=True)
            ]
            (result,), (target,) = module(*mixed), wanted
            loss = (result - target).abs().pow(2).sum(1).mean()
            if step >= s.warmup * s.steps:
                done = (step / s.steps - s.warmup) / (1 - s.warmup)
                beta = 20 - 18 * done
                for each in v.values():
                    h = (torch.sigmoid(each) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)
                    loss = loss + s.regularization * (1 - (2 * h - 1).abs().pow(beta)).sum()
            for optimizer in adam:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in adam:
                optimizer.step()
        for quantizer in [*inside, *(job.quantizers[name] for name in block.weights)]:
            quantizer.substitute = None


def prepared(options: argparse.Namespace) -> tuple[QuantModel, Job]:
    torch.manual_seed(SEED)
    device = torch.device(options.device)
    images = torch.randn(options.images, 3, 32, 32, device=device)
    qmodel = QuantModel(cifar_resnet20().to(device).eval(), parse_qconfig(CONFIG), images[:2])
    qmodel.prepare_calibration()
    for batch in images.split(64):
        qmodel(batch)
    calibration = qmodel.calibration
    assert calibration is not None
    qmodel.calc_qparams()
    job = make_job(qmodel, calibration, None, False)
    for parameter in qmodel.parameters():
        parameter.requires_grad_(False)
    return qmodel, job


def timed(function: Callable[[], object], device: str) -> Cost:
    def whole() -> None:
        function()
        if device == "cuda":
            torch.cuda.synchronize()

    return cost(whole)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10, help="measured for each block in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "step.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _, job = prepared(options)
    settings = Brecq(steps=options.steps)
    eager = EagerLoop(settings)
    rows: list[dict[str, Any]] = []
    moving = 0.0
    load = os.getloadavg()[0]
    with torch.enable_grad(), switched(job.quantizers.values(), True):
        to_adaround(job)
        blocks = find_blocks(job.gm, "block", settings.largest)
        streams = Streams(job.gm, iter(job.inputs), blocks, settings.batch)
        for index, block in enumerate(track(blocks, "blocks", transient=True)):
            module = extract(job.gm, block)
            start = time.perf_counter()
            streams.targets(block, module, job.quantizers.values())
            moving += time.perf_counter() - start

            def own(index: int = index, block: Block = block, module: nn.Module = module) -> None:
                settings._rebuild(job, index, block, module, streams, list(block.weights))

            def loop(index: int = index, block: Block = block, module: nn.Module = module) -> None:
                eager.rebuild(job, index, block, module, streams)

            if block.weights:
                pairs = []
                for turn in range(options.rounds + 1):  # the first allocates and does not count
                    order = (own, loop) if turn % 2 else (loop, own)
                    found = {each: timed(each, options.device) for each in order}
                    pairs.append((found[own], found[loop]))
                costs = [[pair[side] for pair in pairs[1:]] for side in (0, 1)]
                wall = [statistics.median(c.wall for c in side) / options.steps for side in costs]
                cpu = [statistics.median(c.cpu for c in side) / options.steps for side in costs]
                rows.append(
                    {
                        "block": block.name,
                        "milliseconds": round(1000 * wall[0], 2),
                        "eager_milliseconds": round(1000 * wall[1], 2),
                        "processor_milliseconds": round(1000 * cpu[0], 2),
                        "eager_processor_milliseconds": round(1000 * cpu[1], 2),
                        "speedup": round(wall[1] / wall[0], 3),
                    }
                )
            start = time.perf_counter()
            streams.advance(index, block, module)
            moving += time.perf_counter() - start
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key.endswith("milliseconds")}
    data = moving * 1024 / options.images
    seconds = GOAL_STEPS * total["milliseconds"] / 1000 + data
    processor = (GOAL_STEPS * total["processor_milliseconds"] / 1000 + data) / options.threads
    text = {
        "model": "cifar_resnet20",
        "environment": describe(SEED),
        "load_of_the_machine": [round(load, 2), round(os.getloadavg()[0], 2)],
        "images": options.images,
        "steps_measured": options.steps,
        "rounds": options.rounds,
        "speedup_over_eager": round(total["eager_milliseconds"] / total["milliseconds"], 3),
        "speedup_of_processor_time": round(
            total["eager_processor_milliseconds"] / total["processor_milliseconds"], 3
        ),
        "extrapolated": {
            "steps_a_block": GOAL_STEPS,
            "images": 1024,
            "seconds": round(seconds, 1),
            "seconds_if_the_machine_were_ours": round(processor, 1),
            "goal_seconds": GOAL_SECONDS,
        },
        "rows": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    table = Table("block", "ms", "eager ms", "speedup", title=f"a step; goal {GOAL_SECONDS:.0f} s in all")
    for row in rows:
        table.add_row(*(str(row[k]) for k in ("block", "milliseconds", "eager_milliseconds", "speedup")))
    Console().print(table, {k: text[k] for k in ("speedup_over_eager", "extrapolated")})


if __name__ == "__main__":
    main()
