"""From a quantized model, data and measurements to the content of a report."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import torch

from sparsebit.analysis import ErrorProfile, LayerError, profile
from sparsebit.analysis.size import float_bytes, quantized_bytes
from sparsebit.errors import SparsebitError
from sparsebit.export import CheckReport
from sparsebit.export.proof.report import FLOAT_BETWEEN_INTEGERS
from sparsebit.quantization import QuantModel
from sparsebit.report.content import LayerEntry, Measure, ParetoPoint, Report
from sparsebit.report.histograms import histograms
from sparsebit.report.nodes import graph_nodes
from sparsebit.report.pareto import explain_choice
from sparsebit.report.sentence import summarize
from sparsebit.sparse import SConfig, SparseReport

Pair = tuple[float, float]


def collect(
    qmodel: QuantModel,
    data: Iterable[Any],
    *,
    name: str | None = None,
    accuracy: Pair | None = None,
    size: Pair | None = None,
    size_note: str = "of the files",
    latency: Pair | None = None,
    latency_note: str = "",
    pruning: SparseReport | None = None,
    pruning_config: SConfig | None = None,
    check: CheckReport | None = None,
    pareto: Sequence[ParetoPoint] = (),
    pareto_axes: tuple[str, str] = ("size", "accuracy"),
    chosen_because: str = "",
    errors: ErrorProfile | None = None,
    notes: Sequence[str] = (),
    configs: Sequence[tuple[str, str]] | None = None,
    batches: int = 2,
    progress: bool | None = None,
) -> Report:
    """Measure what is not given, and collect the content of the page.

    Args:
        qmodel: calibrated.
        data: batches to profile the errors and the ranges on.
        name: of the model, for the title.
        accuracy: before and after, from 0 to 1 or in its own unit.
        size, size_note: bytes before and after, and of what; by default of the weights at their widths.
        latency: seconds of one call before and after.
        latency_note: how it was measured.
        pruning, pruning_config: the report of earlier pruning, and its config.
        check: the report of checking the exported file.
        pareto, pareto_axes: other trials, and the meaning of their numbers.
        chosen_because: the end of a sentence, shown if another trial beats the chosen one in both numbers.
        errors: an existing profile.
        notes: additional sentences below the numbers.
        configs: titles and texts of configs that reproduce the model; by default the model's own.
        batches: how many batches to profile on.
        progress: whether to show progress; by default only on a terminal.
    """
    for what, pair in (("accuracy", accuracy), ("size", size), ("latency", latency)):
        _require_pair(what, pair)
    errors = errors or profile(qmodel, data, batches, progress=progress)
    pictures = histograms(qmodel, data, batches)
    before = float_bytes(qmodel) if pruning is None else 4 * pruning.params_before
    measures = [_accuracy(accuracy)] if accuracy else []
    measures.append(
        _size(size, size_note) if size else _size((before, quantized_bytes(qmodel)), "of the weights")
    )
    if latency:
        measures.append(
            Measure(name="latency", before=latency[0], after=latency[1], unit="seconds", note=latency_note)
        )
    title = name or type(qmodel).__name__
    layers = tuple(_entry(layer, pictures) for layer in errors.layers)
    return Report(
        title=title,
        sentence=summarize(title, qmodel.plan, measures, pruning),
        measures=tuple(measures),
        nodes=graph_nodes(qmodel, errors),
        layers=layers,
        output_sqnr=errors.output.sqnr_db,
        pareto=tuple(pareto),
        pareto_axes=pareto_axes,
        pareto_note=explain_choice(pareto, pareto_axes, chosen_because),
        in_float=tuple(errors.left_float.items()) + _fallbacks(check),
        advice=tuple((item.layer, item.because) for item in errors.keep_float()),
        notes=(*_slower(latency, check), *notes, *_notes(qmodel, pruning, check, errors)),
        configs=_configs(qmodel, pruning_config) if configs is None else tuple(configs),
        made_with=made_with(),
    )


def made_with() -> tuple[tuple[str, str], ...]:
    """The versions and the machine, for reproducing it."""
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    return (("torch", str(torch.__version__)), ("Python", platform.python_version()), ("machine", machine))


def _require_pair(what: str, pair: object) -> None:
    numbers = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None,)
    if pair is not None and not all(isinstance(one, Real) for one in numbers):
        raise SparsebitError(
            f"{what} is not a pair of numbers",
            expected=f"the {what} of the float model and that of the quantized model",
            got=f"{pair!r:.80}",
        )


def _accuracy(pair: Pair) -> Measure:
    share = max(map(abs, pair)) <= 1
    return Measure(
        name="accuracy" if share else "metric",
        before=pair[0],
        after=pair[1],
        unit="share" if share else "number",
        better="higher",
    )


def _size(pair: Pair, note: str) -> Measure:
    return Measure(name="size", before=pair[0], after=pair[1], unit="bytes", note=note)


def _entry(layer: LayerError, pictures: dict[str, Any]) -> LayerEntry:
    first = layer.inputs[0] if layer.inputs else None
    tensors = [*([layer.weight] if layer.weight else []), *layer.inputs]
    return LayerEntry(
        name=layer.name,
        node=layer.node,
        op=layer.op,
        weight_bits=layer.weight.bits if layer.weight else None,
        input_bits=first.bits if first else None,
        sqnr_alone=layer.alone.sqnr_db,
        sqnr=layer.together.sqnr_db,
        cosine=layer.together.cosine,
        mse=layer.together.mse,
        weight_range=(layer.weight.lo, layer.weight.hi) if layer.weight else None,
        lo=first.lo if first else None,
        hi=first.hi if first else None,
        clipped=max((tensor.clipped for tensor in layer.inputs), default=None),
        histograms=tuple(pictures[tensor.name] for tensor in tensors if tensor.name in pictures),
    )


def _fallbacks(check: CheckReport | None) -> tuple[tuple[str, str], ...]:
    if check is None:
        return ()
    return tuple(
        (op.name, f"planned on integers, runs in float in {check.runtime}: {op.why}")
        for op in check.fallbacks
    )


def _slower(latency: Pair | None, check: CheckReport | None) -> tuple[str, ...]:
    """What to do about a file that is slower than the float model."""
    if latency is None or latency[1] <= latency[0]:
        return ()
    which = f" ({check.in_float})" if check is not None and check.in_float else ""
    return (f"It is slower than the float model. A usual cause{which}: {FLOAT_BETWEEN_INTEGERS}.",)


def _notes(
    qmodel: QuantModel, pruning: SparseReport | None, check: CheckReport | None, errors: ErrorProfile
) -> tuple[str, ...]:
    notes = [f"Errors and ranges were measured on {errors.batches} batches."]
    if pruning is not None:
        notes.append(f"Pruning: {str(pruning).splitlines()[0]}.")
    if check is not None:
        speed = f"; {check.on_integers}" if check.ops else ""
        notes.append(
            f"The exported file in {check.runtime}, end to end against the model: {check.end_to_end}."
        )
        notes.append(f"Piece by piece, from equal quantized values: {check.piece_by_piece}{speed}.")
        if check.float_ops:
            notes.append(f"Operators that compute in float in {check.runtime}: {check.in_float}.")
    return (*notes, *qmodel.plan.notes)


def _configs(qmodel: QuantModel, pruning: SConfig | None) -> tuple[tuple[str, str], ...]:
    found = (("pruning.yaml", pruning), ("quantization.yaml", qmodel.cfg))
    return tuple((title, config.to_yaml()) for title, config in found if config is not None)
