"""What was done, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsebit.quantization import QuantPlan
from sparsebit.report.content import Measure
from sparsebit.sparse import SparseReport


def summarize(
    name: str, plan: QuantPlan, measures: Sequence[Measure], pruning: SparseReport | None = None
) -> str:
    """The summary at the top of the page: what was done, then what it gained."""
    steps = []
    if pruning is not None:
        steps.append(f"pruned ({pruning.sparsity:.0%} of its parameters removed)")
    weights, activations = (
        _widths(t.spec.bits for t in side) for side in (plan.weights(), plan.activations())
    )
    if weights or activations:
        sides = [f"{weights} weights"] * bool(weights) + [f"{activations} activations"] * bool(activations)
        runtime = "" if plan.target == "virtual" else f" for {plan.target}"
        steps.append(f"quantized to {' and '.join(sides)}{runtime}")
    gains = [f"{m.ratio:.1f}× {word}" for m in measures if (word := _WORDS.get(m.name)) and m.ratio >= 1.05]
    quality = next((m for m in measures if m.better == "higher"), None)
    text = f"{name} was {' and '.join(steps) or 'not changed'}"
    if gains:
        text += f", which made it {' and '.join(gains)}"
    if quality is not None:
        after, before = (
            f"{value:.1%}" if quality.unit == "share" else f"{value:.4g}"
            for value in (quality.after, quality.before)
        )
        same = after == before
        text += (
            f"; its {quality.name} stayed at {after}"
            if same
            else f"; its {quality.name} went from {before} to {after}"
        )
    return f"{text}."


_WORDS = {"size": "smaller", "latency": "faster"}


def _widths(bits: Iterable[int]) -> str:
    """``8-bit``, or ``4- to 8-bit``."""
    found = sorted(set(bits))
    if len(found) < 2:
        return f"{found[0]}-bit" if found else ""
    return f"{found[0]}- to {found[-1]}-bit"
