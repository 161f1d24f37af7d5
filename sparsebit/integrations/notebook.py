"""Rich display in notebooks: models, plans and reports as tables instead of text.

``%load_ext sparsebit.integrations.notebook`` in a notebook, or ``show_in_notebooks()`` in Python, gives the classes a
``_repr_html_``; ``to_html(value)`` is the same for any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from sparsebit.analysis import CostReport, ErrorProfile
from sparsebit.export import CheckReport
from sparsebit.graph import show
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.ops import coverage
from sparsebit.quantization import QuantModel, QuantPlan
from sparsebit.report import Report, render
from sparsebit.sparse import SparseModel, SparseReport

_STYLE = "text-align:left;padding:.2em .7em"


def to_html(value: Any) -> str:
    """One of the library's objects as a piece of HTML. Names are escaped."""
    for kind, make in _MAKERS:
        if isinstance(value, kind):
            return str(make(value))
    return f"<pre>{escape(str(value))}</pre>"


def show_in_notebooks() -> None:
    """Give every class that has a display its ``_repr_html_``; asking twice changes nothing."""
    for kind, make in _MAKERS:
        kind._repr_html_ = make


def load_ipython_extension(ipython: object) -> None:
    """What ``%load_ext sparsebit.integrations.notebook`` calls."""
    show_in_notebooks()


def _plan(plan: QuantPlan) -> str:
    rows = [(t.name, t.side, str(t.spec), ", ".join(t.consumers), t.reason) for t in plan.tensors]
    left = [(edge.consumer, edge.source, edge.reason) for edge in plan.edges if edge.tensor is None]
    head = f"plan for {plan.target}: {len(plan.weights())} weights and {len(plan.activations())} activations"
    quantized = _table(("tensor", "", "codes", "read by", "why"), rows)
    in_float = _folded(f"in float: {len(left)} inputs", ("operator", "input", "why"), left)
    return f"<b>{escape(head)}</b>{quantized}{in_float}"


def _quant_model(qmodel: QuantModel) -> str:
    rows = [
        (name, q.side, str(q.spec), "on" if q.is_enable else "off" if q.calibrated else "not calibrated")
        for name, q in qmodel.quantizers.items()
    ]
    head = f"QuantModel for {qmodel.plan.target}: {len(rows)} quantizers"
    return f"<b>{escape(head)}</b>{_table(('tensor', '', 'codes', 'state'), rows)}"


def _captured(gm: CapturedModule) -> str:
    known = str(coverage(gm)).splitlines()[0]
    return f"<b>{escape(type(gm).__name__)}</b> {escape(known)}{_rich(show.to_rich_table(gm))}"


def _sparse_model(smodel: SparseModel) -> str:
    return f"<b>SparseModel</b>{_rich(smodel.report().table())}"


def _report(report: Report) -> str:
    page = escape(render(report))
    style = "width:100%;height:80vh;border:1px solid #8888"
    return f'<iframe srcdoc="{page}" style="{style}" title="Sparsebit report"></iframe>'


def _rich(shown: Any) -> str:
    """Anything for a terminal, as preformatted text."""
    from rich.console import Console

    console = Console(width=140, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(shown)
    return f'<pre style="line-height:1.15;overflow-x:auto">{escape(captured.get())}</pre>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f'<th style="{_STYLE}">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_STYLE}">{escape(cell)}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div style="overflow-x:auto"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _folded(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<details><summary>{escape(title)}</summary>{_table(head, rows)}</details>" if rows else ""


def _cost(report: CostReport) -> str:
    return _rich(report.table())


def _sparse_report(report: SparseReport) -> str:
    return _rich(report.table())


_MAKERS: tuple[tuple[Any, Any], ...] = (
    (QuantPlan, _plan),
    (QuantModel, _quant_model),
    (SparseModel, _sparse_model),
    (CapturedModule, _captured),
    (CostReport, _cost),
    (SparseReport, _sparse_report),
    (ErrorProfile, _rich),
    (CheckReport, _rich),
    (Report, _report),
)
