"""Reports: figures, reasons, and a table."""

from __future__ import annotations

import io

from rich.console import Console

from sparsebit.sparse.choose.pruner import ReportRow
from sparsebit.sparse.report import SparseReport

REPORT = SparseReport(
    kind="structured",
    rows=(
        ReportRow(name="conv", before=64, after=32),
        ReportRow(name="fc", before=10, after=10, note="an output"),
    ),
    params_before=1000,
    params_after=250,
    macs_before=4000,
    macs_after=1000,
)


def test_in_words() -> None:
    assert str(REPORT).splitlines() == [
        "1,000 parameters, 250 left (75.0% gone); 4,000 MACs, 1,000 left (75.0% gone)",
        "not pruned:",
        "  fc: an output",
    ]
    assert REPORT.sparsity == 0.75
    assert [row.name for row in REPORT.unchanged] == ["fc"]


def test_as_a_table() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(REPORT.table())
    assert "channels" in out.getvalue()
    assert "50%" in out.getvalue()
    assert SparseReport(kind="nm", rows=(), params_before=0, params_after=0).sparsity == 0
