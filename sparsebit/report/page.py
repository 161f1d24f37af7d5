"""The page: one self-contained HTML file that needs no network."""

from __future__ import annotations

import importlib.util
import os
from importlib import resources
from pathlib import Path

from sparsebit.analysis.profiling.agreement import decibels
from sparsebit.errors import SparsebitError, missing_package, with_article
from sparsebit.report.content import Report
from sparsebit.report.drawing import draw_graph, draw_histogram
from sparsebit.report.numbers import change, grade, quantity
from sparsebit.report.pareto import draw_pareto
from sparsebit.storage import write_text

_ASSETS = resources.files("sparsebit.report").joinpath("assets")


def require_page() -> None:
    """Check that a page can be created; called before hours of work."""
    if importlib.util.find_spec("jinja2") is None:
        raise missing_package("jinja2", "a report", extra="report")


def render(report: Report) -> str:
    """The complete page as text. Names and texts are escaped: a layer may be called ``<script>``."""
    require_page()
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"decibels": decibels, "grade": grade, "change": change}
    environment.globals |= {"quantity": quantity, "histogram": draw_histogram}
    return environment.from_string(_asset("page.html.j2")).render(
        report=report,
        css=Markup(_asset("page.css")),
        js=Markup(_asset("page.js")),
        graph=draw_graph(report.nodes) if report.nodes else None,
        pareto=draw_pareto(report.pareto, report.pareto_axes) if report.pareto else None,
    )


def save_report(path: str | os.PathLike[str], report: Report) -> Path:
    """Write the page, completely or not at all; returns its path."""
    if not isinstance(report, Report):
        raise SparsebitError(
            "there is no report to write",
            got=with_article(type(report).__name__),
            hint="save_report('report.html', collect(qmodel, batches))",
        )
    return write_text(path, render(report))


def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")
