"""Weights and activations counted along the codes of their grids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.analysis.profiling.calls import active, calls_of, only
from sparsebit.quantization import Quantizer, QuantModel
from sparsebit.report.content import TensorHistogram

BINS = 96


def histograms(
    qmodel: QuantModel, data: Iterable[Any], batches: int | None = None
) -> dict[str, TensorHistogram]:
    """One histogram for each quantized tensor, by name; activations are those of the float model."""
    positions: dict[str, list[Tensor]] = {}
    quantizers = active(qmodel)

    def see(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, Quantizer)
        if inputs[0].numel():
            positions.setdefault(module.name, []).append(_on_grid(module, inputs[0].detach()))

    with only(qmodel, ()), contextlib.ExitStack() as hooks:
        for quantizer in quantizers.values():
            if quantizer.side == "A":
                hooks.enter_context(quantizer.register_forward_pre_hook(see))
        for args, kwargs in calls_of(qmodel, data, batches):
            qmodel(*args, **kwargs)
    weights = qmodel.weights()
    for name, quantizer in quantizers.items():
        if quantizer.side == "W":
            positions[name] = [_on_grid(quantizer, weights[name].detach())]
    return {name: _count(quantizers[name], found) for name, found in positions.items() if found}


def _on_grid(quantizer: Quantizer, x: Tensor, most: int = 200_000) -> Tensor:
    """Numbers in units of codes; for large tensors, an evenly spaced subset."""
    x = quantizer.prepare(x.float())
    grid = quantizer.grid(x)
    codes = (grid.positions(x) + grid.spread(x.shape)[1]).flatten()
    return codes[:: -(-codes.numel() // most)].cpu()


def _count(quantizer: Quantizer, found: list[Tensor]) -> TensorHistogram:
    codes = torch.cat(found)
    codes = codes[codes.isfinite()]
    spec = quantizer.spec
    qmin, qmax = quantizer.code.low, quantizer.code.high
    # One code of room on each side; what lies far outside is counted in the last bin.
    room = max(1.0, 0.05 * (qmax - qmin))
    lo = max(float(codes.min()), qmin - room) if len(codes) else float(qmin)
    hi = min(float(codes.max()), qmax + room) if len(codes) else float(qmax)
    lo, hi = min(lo, qmin) - 0.5, max(hi, qmax) + 0.5
    counts = torch.histc(codes.clamp(lo, hi), bins=BINS, min=lo, max=hi).to(torch.int64).tolist()
    return TensorHistogram(
        name=quantizer.name,
        counts=tuple(counts),
        lo=lo,
        hi=hi,
        qmin=qmin,
        qmax=qmax,
        codes=spec.codes,
        grid=_in_words(quantizer),
    )


def _in_words(quantizer: Quantizer) -> str:
    kind = {"tensor": "one scale", "channel": "a scale per channel", "group": "a scale per group"}
    text = kind.get(quantizer.layout.kind, "a scale per token")
    if quantizer.scale.numel():
        low, high = float(quantizer.scale.detach().min()), float(quantizer.scale.detach().max())
        text += f", {low:.3g}" if low == high else f", {low:.3g} to {high:.3g}"
        if not quantizer.is_symmetric and quantizer.zero_point.numel() == 1:
            text += f", zero at {float(quantizer.zero_point.detach()):.0f}"
    return text
