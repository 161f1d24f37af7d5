"""The steps of a reconstruction: one by one, or on a GPU recorded once and replayed, to avoid the launches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

log = logging.getLogger(__name__)
USE_GRAPHS = True  # whether steps are recorded on CUDA; replaced in benchmarks to compare
CALLED_FIRST = 3  # steps before recording: libraries load their kernels and choose among them
WORTH_RECORDING = 16  # number of steps from which recording is worth it

# Takes which samples (None: any), and the exponent of the regularizer (None: without it). False: nothing to train.
Step = Callable[[Tensor | None, float | Tensor | None], bool]


@dataclass
class Schedule:
    """The values that change from step to step."""

    rows: Tensor | None  # [steps, batch], which samples; None where a step chooses by itself
    betas: list[float | None]
    rates: list[float]  # of what has a learning rate that falls
    rate: Tensor | None  # where an optimizer on CUDA reads that learning rate, and None elsewhere


def run_steps(
    step: Step,
    schedule: Schedule,
    set_rate: Callable[[float], None],
    noise: torch.Generator,
    ticks: Iterator[int],
) -> bool:
    """Run all steps; returns False early if there is nothing to train."""
    steps = len(schedule.betas)
    recorded = USE_GRAPHS and noise.device.type == "cuda" and schedule.rows is not None
    if not recorded or steps < WORTH_RECORDING:
        return _call(step, schedule, set_rate, ticks, range(steps))
    # Not on the default stream, also those that are called: gradients reach a leaf on the stream it was first used on,
    # and what is recorded may not touch another.
    own, outer = torch.cuda.Stream(noise.device), torch.cuda.current_stream(noise.device)
    own.wait_stream(outer)
    with torch.cuda.stream(own):
        found = _call_and_replay(step, schedule, set_rate, noise, ticks)
    outer.wait_stream(own)
    return found


def _call_and_replay(
    step: Step,
    schedule: Schedule,
    set_rate: Callable[[float], None],
    noise: torch.Generator,
    ticks: Iterator[int],
) -> bool:
    steps = len(schedule.betas)
    if not _call(step, schedule, set_rate, ticks, range(CALLED_FIRST)):
        return False
    generators = [noise, torch.cuda.default_generators[torch.cuda.current_device()]]
    before = [generator.clone_state() for generator in generators]
    try:
        graphs = _record(step, schedule, noise, CALLED_FIRST)
    except RuntimeError as error:  # an operator that waits for the device, or does not allow recording
        log.warning("steps run one by one, because they cannot be recorded as a CUDA graph: %s", error)
        # A broken recording leaves them unusable.
        for generator, state in zip(generators, before, strict=True):
            generator.graphsafe_set_state(state)
        return _call(step, schedule, set_rate, ticks, range(CALLED_FIRST, steps))
    for index in range(CALLED_FIRST, steps):
        next(ticks, None)
        graphs[schedule.betas[index] is not None].replay()
    return True


def _call(
    step: Step, schedule: Schedule, set_rate: Callable[[float], None], ticks: Iterator[int], which: range
) -> bool:
    for index in which:
        next(ticks, None)
        set_rate(schedule.rates[index])
        if not step(None if schedule.rows is None else schedule.rows[index], schedule.betas[index]):
            return False
    return True


def _record(
    step: Step, schedule: Schedule, noise: torch.Generator, first: int
) -> dict[bool, torch.cuda.CUDAGraph]:
    """Steps without and with the regularizer as CUDA graphs, which count the steps themselves."""
    device, rows = noise.device, schedule.rows
    assert rows is not None
    index = torch.full((1,), first, device=device)
    betas = torch.tensor([beta or 0.0 for beta in schedule.betas], device=device)
    rates = torch.tensor(schedule.rates, device=device)
    graphs = {}
    for regularized in sorted({beta is not None for beta in schedule.betas[first:]}):
        graph = graphs[regularized] = torch.cuda.CUDAGraph()
        graph.register_generator_state(noise)
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(device)):
            if schedule.rate is not None:
                schedule.rate.copy_(rates.index_select(0, index)[0])
            beta = betas.index_select(0, index)[0] if regularized else None
            step(rows.index_select(0, index)[0], beta)
            index.add_(1)
    return graphs
