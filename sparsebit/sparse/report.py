"""What was removed, layer by layer, and what the model costs now."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from sparsebit.above import in_notebook
from sparsebit.sparse.choose.budget import Reached
from sparsebit.sparse.choose.pruner import ReportRow


@dataclass(frozen=True, kw_only=True)
class SparseReport:
    """What pruning did to a model.

    ``macs`` are None where no shapes are recorded, or where weights became zero and nothing got smaller.
    """

    kind: str  # structured, unstructured, nm, block
    rows: tuple[ReportRow, ...]
    params_before: int
    params_after: int  # without the zeros
    macs_before: int | None = None
    macs_after: int | None = None
    reached: Reached | None = None  # what SPARSER.TARGET came to, when this object chose for one

    _repr_html_ = in_notebook

    @property
    def whole(self) -> tuple[ReportRow, ...]:
        """Layers that had to stay whole, each with its reason."""
        return tuple(row for row in self.rows if row.note)

    @property
    def sparsity(self) -> float:
        """The part of the parameters that is gone."""
        return 1 - self.params_after / self.params_before if self.params_before else 0.0

    def table(self) -> Table:
        """For a terminal."""
        what = "units" if self.kind == "structured" else "weights"
        table = Table(title=str(self).splitlines()[0])
        for header, justify in (("layer", "left"), (what, "right"), ("kept", "right"), ("gone", "right")):
            table.add_column(header, justify=justify)  # type: ignore[arg-type]
        table.add_column("note", justify="left")
        for row in self.rows:
            gone = f"{1 - row.after / row.before:.0%}" if row.before else ""
            table.add_row(row.name, str(row.before), str(row.after), gone, row.note)
        return table

    def print(self, console: Console | None = None) -> None:
        """Show the table on a console."""
        (console or Console()).print(self.table())

    def __str__(self) -> str:
        text = f"{self.params_before:,} parameters, {self.params_after:,} left ({self.sparsity:.1%} gone)"
        if self.macs_before and self.macs_after is not None:
            gone = 1 - self.macs_after / self.macs_before
            text += f"; {self.macs_before:,} MACs, {self.macs_after:,} left ({gone:.1%} gone)"
        if self.reached is not None and (self.reached.target == "latency" or not self.reached.met):
            text += f"\n{self.reached}"
        lines = [f"  {row.name}: {row.note}" for row in self.whole]
        return "\n".join([text, *(["stayed whole:", *lines] if lines else [])])
