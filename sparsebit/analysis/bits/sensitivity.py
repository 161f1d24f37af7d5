"""The error that each tensor causes at each width while everything else is in float."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from rich.table import Table
from torch import nn

from sparsebit.analysis.bits.choices import Choice, Product, find_choices, find_products
from sparsebit.analysis.bits.curvature import Curvature, Probe
from sparsebit.analysis.bits.layer_bits import FLOAT
from sparsebit.analysis.profiling.agreement import Agreement, float_outputs, outputs_agree
from sparsebit.analysis.profiling.calls import calls_of, only
from sparsebit.analysis.size import other_bytes
from sparsebit.batches import Call, read_batches
from sparsebit.config import QConfig, Side, load_qconfig
from sparsebit.display import as_text, in_notebook
from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.progress import progress as shown
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.storage.typed import to_plain

Metric = Literal["output", "fisher", "hessian"]
BITS = (2, 4, 8, 16, FLOAT)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Errors by choice and width, and what each width costs."""

    choices: tuple[Choice, ...]
    errors: Mapping[str, Mapping[int, float]]
    """By the name of a choice, then by bits; ``FLOAT`` (32) has error 0."""
    metric: Metric
    config: QConfig
    products: tuple[Product, ...] = ()
    other_bytes: int = 0
    """Bytes of the parameters that nothing is chosen for."""

    _repr_html_ = in_notebook

    def size(self, bits: Mapping[str, int]) -> float:
        """Bytes of all parameters with these bits by choice."""
        return self.other_bytes + sum(c.stored_bytes(bits[c.name]) for c in self.choices if c.side == "W")

    def bops(self, bits: Mapping[str, int]) -> float:
        """Bit operations of one call: multiply-accumulates times the bits of both operands."""
        total = 0
        for product in self.products:
            first, second = (
                bits[name] if name is not None else fixed
                for name, fixed in zip(product.operands, product.fixed, strict=True)
            )
            total += product.macs * first * second
        return float(total)

    def error(self, bits: Mapping[str, int]) -> float:
        """The sum of the errors, which is minimized: errors of different tensors are assumed independent."""
        return sum(self.errors[name][width] for name, width in bits.items())

    def uniform(self, bits: int) -> dict[str, int]:
        """The same width for every choice, or the nearest one that the choice can have."""
        return {name: min(by, key=lambda width: abs(width - bits)) for name, by in self.errors.items()}

    def table(self) -> Table:
        """For a terminal: one row for each choice, one column for each width."""
        widths = sorted({width for by in self.errors.values() for width in by if width != FLOAT})
        table = Table(title=f"error of the model with one tensor quantized ({self.metric})")
        for head in ("tensor", "", "elements", *(f"{width} bits" for width in widths)):
            table.add_column(head, justify="left" if head in ("tensor", "") else "right")
        for choice in self.choices:
            by = self.errors[choice.name]
            cells = [f"{by[width]:.2e}" if width in by else "" for width in widths]
            table.add_row(choice.name, choice.side, str(choice.elements or ""), *cells)
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = ("name", "side", "layers", "elements")
        rows = [
            {name: to_plain(getattr(choice, name)) for name in names}
            | {"errors": to_plain(self.errors[choice.name])}
            for choice in self.choices
        ]
        return {"metric": self.metric, "other_bytes": self.other_bytes, "choices": rows}

    def __rich__(self) -> Table:
        return self.table()

    __str__ = as_text


def sensitivity(
    model: nn.Module,
    config: QConfig | str | Mapping[str, Any],
    data: Any,
    *,
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    bits: Sequence[int] = BITS,
    sides: Sequence[Side] = ("W",),
    metric: Metric | Curvature = "output",
    batches: int | None = None,
    progress: bool | None = None,
) -> Sensitivity:
    """Measure the error that every weight (and activation) causes at every width, one at a time.

    Args:
        model: in evaluation mode; not changed.
        config: how everything else is quantized: scheme, observers, target. Its recovery steps are left out.
        data: batches, as for ``QuantModel.calibrate``; used to calibrate and to measure.
        example_inputs, example_kwargs: as for ``QuantModel``.
        bits: widths to try; 32 is float. Widths that the target cannot run are skipped.
        sides: "W" for weights, "A" for activations.
        metric: ``output``: relative squared error of the model's outputs, by running it, ``len(bits)`` times the number
            of tensors. ``fisher``, ``hessian``, or a ``Curvature`` with a loss: an estimate by gradients.
        batches: how many to use.
        progress: whether to show progress; by default only on a terminal.
    """
    if not isinstance(metric, Curvature) and metric not in get_args(Metric):
        raise SparsebitError(f"there is no metric {metric!r:.80}", expected=", ".join(get_args(Metric)))
    if not sides or not set(sides) <= set(get_args(Side)):
        raise SparsebitError("sides: expected some of 'W' and 'A'", got=f"{sides!r:.80}")
    curvature: Curvature | None = None
    if metric != "output":
        curvature = metric if isinstance(metric, Curvature) else Curvature(kind=metric)
    base = _without_recovery(parse_qconfig(config))
    qmodel = QuantModel(model, base, example_inputs, example_kwargs)
    kept = list(read_batches(data, batches))
    qmodel.calibrate(kept, progress=False)
    choices = find_choices(qmodel, tuple(sides))
    if not choices:
        raise SparsebitError(
            "there is nothing to choose bits for",
            hint="the config quantizes none of these tensors; print(qmodel.plan) shows the reason for each",
        )
    calls = list(calls_of(qmodel, kept))
    rest = [qmodel.inputs.batch(batch).rest for batch in kept]
    products, fixed = find_products(qmodel, choices), other_bytes(qmodel)
    allowed = {side: _allowed(base, side, bits) for side in sides}
    errors: dict[str, dict[int, float]] = {c.name: {} for c in choices}
    widths = sorted({width for found in allowed.values() for width in found})
    work = [(width, choice) for width in widths for choice in choices if width in allowed[choice.side]]
    steps = shown(work, "measuring sensitivity", shown=progress)
    for width, group in itertools.groupby(steps, key=lambda step: step[0]):
        if width == FLOAT:
            for _, choice in group:
                errors[choice.name][width] = 0.0
            continue
        mine = [choice for at, choice in work if at == width]
        _recalibrate(qmodel, mine, width, kept)
        measure = (
            _by_output(qmodel, calls)
            if curvature is None
            else _by_curvature(qmodel, calls, rest, mine, curvature)
        )
        for _, choice in group:
            error = errors[choice.name][width] = measure(choice)
            if not math.isfinite(error):
                raise SparsebitError(
                    f"the error of {choice.name!r} at {width} bits is not a finite number",
                    got=str(error),
                    hint="look at the data, the outputs of the model and the loss",
                )
    return Sensitivity(
        choices=tuple(choices),
        errors=errors,
        metric=metric.kind if isinstance(metric, Curvature) else metric,
        config=parse_qconfig(config),
        products=tuple(products),
        other_bytes=fixed,
    )


def _recalibrate(qmodel: QuantModel, choices: Sequence[Choice], width: int, data: Sequence[Any]) -> None:
    for choice in choices:
        for name in choice.tensors:
            qmodel.quantizers[name].set_bit(width)
    qmodel.calibrate(data, progress=False)


def _by_output(qmodel: QuantModel, calls: Sequence[Call]) -> Callable[[Choice], float]:
    with only(qmodel, ()):
        exact = [float_outputs(qmodel(*args, **kwargs)) for args, kwargs in calls]
    if not any(exact):
        raise SparsebitError(
            "the model returns no floating-point numbers, so no error can be measured",
            hint="measure a model that returns its logits, or pass metric=Curvature(loss=...)",
        )

    def measure(choice: Choice) -> float:
        with only(qmodel, choice.tensors):
            pairs = zip(exact, calls, strict=True)
            seen = [
                outputs_agree(float_result, qmodel(*args, **kwargs)) for float_result, (args, kwargs) in pairs
            ]
        return sum(seen, Agreement()).relative

    return measure


def _by_curvature(
    qmodel: QuantModel,
    calls: Sequence[Call],
    rest: Sequence[tuple[Any, ...]],
    choices: Sequence[Choice],
    curvature: Curvature,
) -> Callable[[Choice], float]:
    names = [name for choice in choices for name in choice.tensors]
    probe = Probe(qmodel, names, curvature)
    totals = dict.fromkeys(names, 0.0)
    signal = 0.0
    for (args, kwargs), behind in zip(calls, rest, strict=True):
        with only(qmodel, ()):
            exact = float_outputs(qmodel(*args, **kwargs))
            values, bends = probe.run(args, kwargs, behind)
            signal += sum(Agreement.of(y, y).signal for y in exact)
            for name, value in values.items():
                change = (qmodel.quantizers[name].snap(value) - value).square()
                totals[name] += float((bends[name] * change).sum(dtype=torch.float64))
    # Without a loss this estimates the squared error of the outputs; with one, the rise of the loss, H Δ² / 2.
    unit = signal if curvature.loss is None else 2.0 * len(calls)
    return lambda choice: sum(totals[name] for name in choice.tensors) / max(unit, 1e-30)


def _allowed(config: QConfig, side: Side, bits: Sequence[int]) -> list[int]:
    found = []
    for width in sorted(set(bits)):
        try:
            load_qconfig(config, [f"{side}.QUANTIZER.BIT={0 if width == FLOAT else width}"])
        except ConfigError:
            continue
        found.append(width)
    if not found:
        raise SparsebitError(
            f"{config.BACKEND} supports none of the requested widths",
            got=", ".join(map(str, bits)),
            where=f"side {side}",
        )
    return found


def _without_recovery(config: QConfig) -> QConfig:
    overrides = ["SCHEDULE.RECOVERY=[]"]
    if config.W.QUANTIZER.TYPE == "adaround":  # learning would take minutes at every width
        overrides.append("W.QUANTIZER.TYPE=uniform")
    return load_qconfig(config, overrides)
