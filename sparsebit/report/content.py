"""The content of a report, as data. The page determines how it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsebit.display import in_notebook


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number before and after: accuracy, size, latency."""

    name: str
    before: float
    after: float
    unit: Literal["share", "bytes", "seconds", "number"] = "number"
    better: Literal["higher", "lower"] = "lower"
    note: str = ""

    @property
    def ratio(self) -> float:
        """How many times better, if smaller is better."""
        return self.before / self.after if self.after else float("inf")


@dataclass(frozen=True, kw_only=True)
class TensorHistogram:
    """The distribution of one tensor's numbers on its grid; the axis is in codes.

    Every bin has the width ``(hi - lo) / len(counts)``. Numbers outside ``qmin`` to ``qmax`` are clipped.
    """

    name: str
    counts: tuple[int, ...]
    lo: float
    hi: float
    qmin: int
    qmax: int
    codes: str
    grid: str
    """The scale or scales of the grid, as text."""


@dataclass(frozen=True, kw_only=True)
class LayerEntry:
    """One operator that reads quantized tensors. Numbers are None if nothing was measured."""

    name: str
    node: str
    op: str
    weight_bits: int | None = None
    input_bits: int | None = None
    sqnr_alone: float | None = None
    sqnr: float | None = None
    cosine: float | None = None
    mse: float | None = None
    weight_range: tuple[float, float] | None = None
    lo: float | None = None
    hi: float | None = None
    clipped: float | None = None
    histograms: tuple[TensorHistogram, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """One box of the drawing. ``inputs`` index ``Report.nodes``; ``layer`` is the name of its entry, if any."""

    name: str
    op: str
    inputs: tuple[int, ...]
    kind: Literal["input", "output", "op"] = "op"
    shape: str = ""
    bits: str = ""
    sqnr: float | None = None
    layer: str | None = None


@dataclass(frozen=True, kw_only=True)
class ParetoPoint:
    """One way to compress the model: its cost and its quality."""

    name: str
    cost: float
    quality: float
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything on the page."""

    title: str
    sentence: str
    measures: tuple[Measure, ...] = ()
    nodes: tuple[GraphNode, ...] = ()
    layers: tuple[LayerEntry, ...] = ()
    output_sqnr: float | None = None
    pareto: tuple[ParetoPoint, ...] = ()
    pareto_axes: tuple[str, str] = ("size", "accuracy")
    pareto_note: str = ""
    """Why the chosen point is not on the line, if it is not."""
    in_float: tuple[tuple[str, str], ...] = ()
    """Operators in float, and why."""
    advice: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    configs: tuple[tuple[str, str], ...] = ()
    """Titles and the YAML under them."""
    made_with: tuple[tuple[str, str], ...] = ()

    _repr_html_ = in_notebook
