"""What was removed, layer by layer, and the current cost of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table
from torch import Tensor

from sparsebit.display import in_notebook, printable
from sparsebit.errors import SparsebitError
from sparsebit.sparse.choose.budget import Reached
from sparsebit.sparse.choose.channel_pruner import ChannelPruner
from sparsebit.sparse.choose.pruner import Pruner, ReportRow
from sparsebit.sparse.masking.masked_graph import MaskedGraph


@dataclass(frozen=True, kw_only=True)
class SparseReport:
    """What pruning did to a model.

    ``macs`` are None if no shapes are recorded, or if weights became zero and no tensor is smaller.
    """

    kind: str  # structured, unstructured, nm, block
    rows: tuple[ReportRow, ...]
    params_before: int
    params_after: int  # without the zeros
    macs_before: int | None = None
    macs_after: int | None = None
    reached: Reached | None = None  # what SPARSER.TARGET came to, when this object chose for one
    statistics: str = ""  # which operators take their statistics over the remaining channels

    _repr_html_ = in_notebook

    @property
    def unchanged(self) -> tuple[ReportRow, ...]:
        """Layers that could not be pruned, each with its reason."""
        return tuple(row for row in self.rows if row.note)

    @property
    def sparsity(self) -> float:
        """The fraction of the parameters that was removed."""
        return 1 - self.params_after / self.params_before if self.params_before else 0.0

    def table(self) -> Table:
        """The report as a table for a terminal."""
        what = "channels" if self.kind == "structured" else "weights"
        table = Table(title=str(self).splitlines()[0])
        for header, justify in (("layer", "left"), (what, "right"), ("kept", "right"), ("gone", "right")):
            table.add_column(header, justify=justify)  # type: ignore[arg-type]
        table.add_column("note", justify="left")
        for row in self.rows:
            gone = f"{1 - row.after / row.before:.0%}" if row.before else ""
            table.add_row(row.name, str(row.before), str(row.after), gone, row.note)
        return table

    def __str__(self) -> str:
        text = f"{self.params_before:,} parameters, {self.params_after:,} left ({self.sparsity:.1%} gone)"
        if self.macs_before and self.macs_after is not None:
            gone = 1 - self.macs_after / self.macs_before
            text += f"; {self.macs_before:,} MACs, {self.macs_after:,} left ({gone:.1%} gone)"
        if self.reached is not None and (self.reached.target == "latency" or not self.reached.met):
            text += f"\n{self.reached}"
        lines = [f"  {row.name}: {row.note}" for row in self.unchanged]
        text = "\n".join([text, *(["not pruned:", *lines] if lines else [])])
        return printable(f"{text}\n{self.statistics}" if self.statistics else text)


def make_report(pruner: Pruner, kept: Mapping[str, Tensor]) -> SparseReport:
    """The report of a choice, from the pruner that made it."""
    rows = tuple(pruner.rows(kept))
    before = sum(parameter.numel() for parameter in pruner.gm.parameters())
    if not isinstance(pruner, ChannelPruner):
        zeros = sum(row.before - row.after for row in rows)
        return SparseReport(
            kind=pruner.config.SPARSER.TYPE, rows=rows, params_before=before, params_after=before - zeros
        )
    cost, flags = pruner.cost, {name: flag.cpu() for name, flag in kept.items()}
    return SparseReport(
        kind="structured",
        rows=rows,
        params_before=before,
        params_after=cost.params(flags),
        macs_before=cost.macs({}) if cost.shapes_known else None,
        macs_after=cost.macs(flags) if cost.shapes_known else None,
        reached=pruner.reached,
        statistics=_statistics_note(pruner, flags),
    )


def require_choice(pruner: Pruner, kept: Mapping[str, Tensor], *, decided: bool) -> None:
    """Raise an error if nothing was chosen yet, or, with the reasons, if a choice removes nothing."""
    if any(not bool(flags.all()) for flags in kept.values()):
        return
    if not decided:
        raise SparsebitError(
            "nothing is pruned yet", hint="call calc_params() first, or step() in a training loop"
        )
    settings = pruner.config.SPARSER
    notes = [f"{row.name}: {row.note}" for row in pruner.rows(kept) if row.note]
    reasons = f" ({'; '.join(notes[:3])})" if notes else ""
    rounded, hint = "", "raise RATIO, or change what keeps these layers"
    if isinstance(pruner, ChannelPruner):
        rounded, hint = f" and ROUND_TO {settings.ROUND_TO}", "raise RATIO or lower ROUND_TO"
        if all(group.frozen for group in pruner.groups):
            hint = "every layer is kept for such a reason, so no RATIO helps; TYPE: unstructured removes single weights"
    raise SparsebitError(
        f"nothing could be pruned with SPARSER.RATIO {settings.RATIO}{rounded}{reasons}", hint=hint
    )


def _statistics_note(pruner: ChannelPruner, kept: Mapping[str, Tensor]) -> str:
    """Note that norms use only the remaining channels, because zeros would give a different result."""
    graph = MaskedGraph(pruner.gm, pruner.groups, kept)
    found = [text for name, text in pruner.groups.trace.statistics.items() if name in graph.replaced]
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"statistics are taken over the remaining channels: {found[0]}{more}"
