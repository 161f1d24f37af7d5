"""By how much goals are missed, and what limits them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from sparsebit.analysis import profile
from sparsebit.analysis.profiling.agreement import decibels
from sparsebit.analysis.size import other_bytes, quantized_bytes
from sparsebit.display import short_bytes
from sparsebit.errors import SparsebitError
from sparsebit.export import export_onnx
from sparsebit.export.proof.report import FLOAT_BETWEEN_INTEGERS
from sparsebit.quantization import QuantModel
from sparsebit.recipes.goals import speedup_of
from sparsebit.recipes.search import Search
from sparsebit.recipes.trial import Trial
from sparsebit.targets import TARGETS

NAMED = 3  # layers in one sentence


def find_limits(search: Search, best: Trial, qmodel: QuantModel) -> tuple[str, ...]:
    """One sentence for each goal that the best trial misses."""
    assert best.measured is not None
    missed = search.goals.shortfalls(search.base, best.measured)
    found = []
    if "metric" in missed:
        found.append(_metric(search, best, qmodel))
    if "size" in missed:
        found.append(_size(search, best, qmodel))
    if "speedup" in missed:
        found.append(_speed(search, best, qmodel))
    if missed and search.stopped.startswith("the time budget"):
        found.append("time: the search was not over; raise time_budget, or continue in the same folder")
    return tuple(found + (search.notes if missed else []))


def _metric(search: Search, best: Trial, qmodel: QuantModel) -> str:
    assert best.measured is not None
    drop, allowed = search.base.metric - best.measured.metric, search.goals.max_drop
    text = f"accuracy: it loses {drop:.4g}, {drop - allowed:.4g} more than the allowed {allowed:.4g}"
    if best.recipe is not None and best.recipe.prune is not None:
        pruned = search.base.metric - search.metric_of(search.built(best)[0])
        training = "" if search.candidates.finetune else ", without training,"
        text += f"; pruning alone{training} loses {pruned:.4g} of it"
        if pruned > drop / 2:
            return text
    errors = profile(qmodel, search.candidates.batches[:1], progress=False)
    advice = errors.keep_float(NAMED)
    if advice:
        return f"{text}; most of it comes from {'; '.join(map(str, advice))}"
    worst = sorted(errors.layers, key=lambda layer: layer.alone.sqnr_db)[:NAMED]
    names = ", ".join(f"{layer.name} ({decibels(layer.alone.sqnr_db)})" for layer in worst)
    return f"{text}; it comes from all quantized layers equally; the largest errors are in {names}"


def _size(search: Search, best: Trial, qmodel: QuantModel) -> str:
    assert best.measured is not None
    allowed = search.goals.bytes_allowed(search.base)
    assert allowed is not None
    over = best.measured.bytes - allowed
    rest, total = other_bytes(qmodel), quantized_bytes(qmodel)
    took = short_bytes(round(best.measured.bytes))
    text = f"size: {took} is {short_bytes(round(over))} ({over / allowed:.0%}) too much"
    smallest = min(t.measured.bytes for t in search.reached.values() if t.measured)
    return (
        f"{text}; the smallest of all recipes takes {short_bytes(round(smallest))}, and the part in float"
        f" (biases, norms, layers without integers) is {rest / total:.0%} of this one"
    )


def _speed(search: Search, best: Trial, qmodel: QuantModel) -> str:
    assert best.measured is not None and search.goals.speedup is not None
    reached = speedup_of(search.base, best.measured)
    done = [t.measured for t in search.reached.values() if t.measured]
    fastest = max(speedup_of(search.base, measured) for measured in done)
    text = (
        f"speed: {reached:.2f} times as fast, {search.goals.speedup - reached:.2f} short of {search.goals.speedup:.3g};"
        f" the fastest of all recipes reaches {fastest:.2f}"
    )
    if TARGETS[search.candidates.target].runtime is None:
        return text
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = export_onnx(qmodel, search.candidates.example, Path(folder) / "model.onnx").report
    except SparsebitError as error:
        return f"{text}; the export could not be checked: {error.message}"
    slow = [f"{op.name} ({op.why})" for op in report.fallbacks] if report is not None else []
    if not slow and report is not None and report.in_float:
        return (
            f"{text}; every planned operator already runs on integers, but these have no integer kernel and compute "
            f"in float: {report.in_float}; {FLOAT_BETWEEN_INTEGERS}"
        )
    if not slow:
        return f"{text}; every planned operator already runs on integers, so only pruning makes it faster"
    return f"{text}; {len(slow)} operators run in float: {', '.join(slow[:NAMED])}"
