"""The report of a search."""

from __future__ import annotations

from sparsebit.report import report_search
from tests.report.samples import batches


def test_a_search_becomes_a_report() -> None:
    from sparsebit.recipes import compress
    from tests.report.samples import Net

    model = Net().eval()
    labelled = [(x, model(x).argmax(1)) for x in batches()]
    found = compress(model, labelled, max_drop=0.9, size=0.5, time_budget=20)
    report = report_search(found, labelled, name="net", progress=False)
    assert [point.name for point in report.pareto if point.chosen] == [found.best.name]
    assert report.configs == (("recipe.yaml", found.yaml),) and "goals met" in report.notes[0]
