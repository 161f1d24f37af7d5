"""Rich display in notebooks: models, plans, groups and reports as tables instead of text.

The classes have a ``_repr_html_`` that calls this module, so no notebook extension is needed; ``to_html(value)`` is the
same for anything. Colours are those of the notebook, light or dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparsebit.display import as_text
from sparsebit.graph import show
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.ops import coverage
from sparsebit.quantization import QuantModel, QuantPlan
from sparsebit.report import Report, render
from sparsebit.sparse import SparseModel
from sparsebit.sparse.channels import ChannelGroups

_CELL = "text-align:left;padding:.2em .7em;vertical-align:top"
_BOX = "overflow:auto;max-height:32em"


def to_html(value: Any) -> str:
    """One of the library's objects as an HTML fragment. Names are escaped."""
    for kind, make in _MAKERS:
        if isinstance(value, kind):
            return make(value)
    if hasattr(value, "__rich__"):
        return _shown(value)
    return _shown(value.table()) + _line(value) if hasattr(value, "table") else _text(value)


def _plan(plan: QuantPlan) -> str:
    rows = [(t.name, t.side, str(t.spec), ", ".join(t.consumers), t.reason) for t in plan.tensors]
    head = f"plan for {plan.target}: {len(plan.weights())} weights and {len(plan.activations())} activations"
    quantized = _table(("tensor", "", "type", "read by", "why"), rows)
    others = "".join(
        _folded(
            f"{what}: {len(edges)} inputs",
            _table(("operator", "input", "why"), [(e.consumer, e.source, e.reason) for e in edges]),
        )
        for what, edges in (("in float", plan.left_float()), ("no quantizer needed", plan.fused()))
        if edges
    )
    return f"{_bold(head)}{quantized}{others}"


def _quant_model(qmodel: QuantModel) -> str:
    rows = [
        (name, q.side, str(q.spec), "on" if q.is_enable else "off" if q.calibrated else "not calibrated")
        for name, q in qmodel.quantizers.items()
    ]
    head = f"QuantModel for {qmodel.plan.target}: {len(rows)} quantizers"
    return f"{_bold(head)}{_table(('tensor', '', 'type', 'state'), rows)}{_folded('its plan', _plan(qmodel.plan))}"


def _captured(gm: CapturedModule) -> str:
    known = str(coverage(gm)).splitlines()[0]
    return f"{_bold(type(gm).__name__)} {escape(known)}{_shown(show.to_rich_table(gm))}"


def _sparse_model(smodel: SparseModel) -> str:
    return f"{_bold('SparseModel')}{_shown(smodel.report().table())}"


def _groups(groups: ChannelGroups) -> str:
    rows = [
        (group.name, str(group.channels), ", ".join(group.producers), group.frozen or "can shrink")
        for group in groups
    ]
    head = f"{len(groups)} channel groups, {len(groups.free)} of them can shrink"
    return _bold(head) + _table(("group", "channels", "made by", "state"), rows)


def _report(report: Report) -> str:
    page = escape(render(report))
    style = "width:100%;height:80vh;border:1px solid #8888"
    return f'<iframe srcdoc="{page}" style="{style}" title="Sparsebit report"></iframe>'


def _shown(value: Any) -> str:
    """Terminal output as HTML: tables as tables, text as text."""
    if hasattr(value, "__rich__"):
        value = value.__rich__()
    if isinstance(value, Group):
        return "".join(_shown(part) for part in value.renderables)
    if isinstance(value, Table):
        title = _bold(str(value.title)) if value.title else ""
        rows = zip(*(column.cells for column in value.columns), strict=True)
        head = [str(column.header) for column in value.columns]
        return title + _table(head, [[str(cell) for cell in row] for row in rows])
    return _line(value) if isinstance(value, str | Text) else _text(as_text(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    thead = f"<thead><tr>{cells}</tr></thead>" if any(head) else ""
    return f'<div style="{_BOX}"><table>{thead}<tbody>{body}</tbody></table></div>'


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _bold(text: str) -> str:
    return f"<b>{escape(text)}</b>"


def _line(value: Any) -> str:
    return f"<div>{escape(str(value))}</div>"


def _text(value: Any) -> str:
    return f'<pre style="line-height:1.15;{_BOX}">{escape(str(value))}</pre>'


_MAKERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (QuantPlan, _plan),
    (QuantModel, _quant_model),
    (SparseModel, _sparse_model),
    (CapturedModule, _captured),
    (ChannelGroups, _groups),
    (Report, _report),
)
