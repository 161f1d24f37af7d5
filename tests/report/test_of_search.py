"""The report of a search, and files that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.report import report_search, write_text
from tests.report.samples import batches


def test_files_that_cannot_be_written_say_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SparsebitError, match="cannot write"):
        write_text(tmp_path / "file" / "below.txt", "text")
    assert write_text(tmp_path / "new" / "a.txt", "é").read_text(encoding="utf-8") == "é"


def test_a_search_becomes_a_report() -> None:
    from sparsebit.recipes import compress
    from tests.report.samples import Net

    model = Net().eval()
    labelled = [(x, model(x).argmax(1)) for x in batches()]
    found = compress(model, labelled, max_drop=0.9, size=0.5, time_budget=20)
    report = report_search(found, labelled, name="net", progress=False)
    assert [point.name for point in report.pareto if point.chosen] == [found.best.name]
    assert report.configs == (("recipe.yaml", found.yaml),) and "goals met" in report.notes[0]
