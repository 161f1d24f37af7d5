"""The verb: measure, choose, and return the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from sparsebit.analysis.bits.choose_bits import (
    POINTS,
    BitChoice,
    choose_bits,
    measure_latencies,
    require_budget,
)
from sparsebit.analysis.bits.sensitivity import sensitivity
from sparsebit.config import QConfig, Side
from sparsebit.errors import SparsebitError


def mixed_precision(
    model: nn.Module,
    config: QConfig | str | Mapping[str, Any],
    data: Any,
    *,
    example_inputs: Any,
    size: float | None = None,
    bops: float | None = None,
    latency: float | None = None,
    measure: Callable[[QConfig], float] | None = None,
    sides: Sequence[Side] | None = None,
    points: int = POINTS,
    **options: Any,
) -> BitChoice:
    """Bits for every layer under one budget; ``result.config`` is the config that applies them.

    Args:
        model, config, data, example_inputs: as for ``sensitivity``.
        size: bytes of all parameters. Weights are chosen for.
        bops: bit operations of one call. Weights and activations are chosen for.
        latency: seconds of one call, by ``measure``, which gives the seconds of the model with a config.
        measure: see ``measure_latencies``.
        sides: what to choose for; by default it depends on the budget.
        points: of the Pareto curve.
        options: the other arguments of ``sensitivity``, by name: ``bits``, ``metric``, ``batches``, ...

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
        >>> x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
        >>> chosen = mixed_precision(net, "w4a8", [x], example_inputs=(x,), size=600, progress=False)
        >>> chosen.size <= 600, sorted(chosen.bits)
        (True, ['0.weight', '2.weight'])
    """
    kind, _ = require_budget(size=size, bops=bops, latency=latency)
    if (kind == "latency") != callable(measure):
        raise SparsebitError(
            "a budget of latency, and no other, needs measure=, a function", got=f"{measure!r:.80}"
        )
    sides = sides or (("W",) if kind == "size" else ("W", "A"))
    found = sensitivity(model, config, data, example_inputs=example_inputs, sides=sides, **options)
    table = measure_latencies(found, measure) if measure is not None else None
    return choose_bits(found, size=size, bops=bops, latency=latency, table=table, points=points)
