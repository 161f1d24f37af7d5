"""The page of the comparison: every part's table, chart and notes, made from the result files alone."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.chart import draw_bars
from benchmarks.peers.row import NOT_YET, Column, Row, row_from

INTRODUCTION = Path(__file__).with_name("introduction.md")
CLOSING = """## Measure it again

Each tool is installed in its own environment from pinned requirements, and its script is in `benchmarks/peers`.

```sh
SPARSEBIT_DATA=/path/to/data SMOLLM2=/path/to/smollm2 python -m benchmarks.peers.run --venvs FOLDER
```

This command measures everything and writes this page from `benchmarks/peers/results`. `--part`, `--peer` and `--model`
select rows, and `--only-page` writes the page without measuring.
"""
LISTED = 8  # files of a suite that the page names


def write_page(results: Path, page: Path, parts: Sequence[str]) -> None:
    """Tables, charts and notes of all parts that have results."""
    sections = [INTRODUCTION.read_text(encoding="utf-8")]
    for name in parts:
        path = results / f"{name}.json"
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            sections.append(_section(name, content, page.parent / "assets"))
    tests = results / "tests.json"
    if tests.is_file():
        sections.append(show_tests(json.loads(tests.read_text(encoding="utf-8"))))
    sections.append(CLOSING)
    page.write_text("\n".join(sections).rstrip() + "\n", encoding="utf-8")


def _section(name: str, content: dict[str, Any], assets: Path) -> str:
    part = importlib.import_module(f"benchmarks.peers.{name}.part")
    rows = [row_from(row) for row in content["rows"]]
    chart = next(column for column in part.COLUMNS if column.key == part.CHART)
    drawing = draw_bars(part.TITLE, chart, rows)
    if drawing:
        assets.mkdir(parents=True, exist_ok=True)
        (assets / f"peers_{name}.svg").write_text(drawing, encoding="utf-8")
    notes = Path(part.__file__).parent / "notes.md"
    text = [f"## {part.TITLE}", ""]
    text += [f"- {key.replace('_', ' ')}: {value}" for key, value in content["protocol"].items()]
    commits = sorted({row.commit or content["environment"]["commit"] for row in rows})
    measured_at = f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
    text += [f"- machine: {content['environment']['processor']}, {measured_at}", ""]
    if drawing:
        text += [f"![{chart.heading} by tool](assets/peers_{name}.svg)", ""]
    for model in dict.fromkeys(row.model for row in rows if not row.failed):
        of_model = [row for row in rows if row.model == model and not row.failed]
        text += [f"### {model}", "", *markdown_table(part.COLUMNS, of_model), ""]
    text += _reasons(rows)
    if notes.is_file():
        text += [notes.read_text(encoding="utf-8").strip(), ""]
    return "\n".join(text)


def _reasons(rows: Iterable[Row]) -> list[str]:
    """Rows that failed or have no file, with the tool's own message; models with the same message are one line."""
    models: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.failed or row.note:
            said = " ".join((row.failed or row.note).split()).replace("`", "'")
            outcome = f"failed: `{said}`" if row.failed else f"`{said}`"
            if said.startswith(NOT_YET):
                outcome = NOT_YET
            models.setdefault((f"{row.peer} {row.setting}", outcome), []).append(row.model)
    lines = []
    for (what, said), names in models.items():
        where = "" if "all" in names else f" on {' and '.join(names)}"
        lines.append(f"- {what}{where}: {said}")
    return ["Incomplete rows, with the message of the tool:", "", *lines, ""] if lines else []


def markdown_table(columns: Sequence[Column], rows: Sequence[Row]) -> list[str]:
    """Lines of a table; the best value among rows of the same width of weights is bold."""
    shown = [column for column in columns if any(row.measures.get(column.key) is not None for row in rows)]
    lines = [
        "| " + " | ".join(["tool", "setting", *(column.heading for column in shown), "lines"]) + " |",
        "|" + " --- |" * (len(shown) + 3),
    ]
    for row in rows:
        alike = [other for other in rows if family(other) == family(row)]
        cells = [f"{row.peer} {row.version}".strip(), row.setting]
        cells += [_cell(column, row, alike) for column in shown]
        lines.append("| " + " | ".join([*cells, str(row.lines) if row.lines is not None else ""]) + " |")
    return lines


def family(row: Row) -> str:
    """Settings that compare: those with the same widths, whatever else is said after a comma."""
    return row.setting.partition(",")[0]


def _cell(column: Column, row: Row, alike: Sequence[Row]) -> str:
    value = row.measures.get(column.key)
    if value is None:
        return ""
    text = f"{value:.{column.digits}f}"
    known = [found for other in alike if (found := other.measures.get(column.key)) is not None]
    if not column.better or len(known) < 2:
        return text
    best = (max if column.better == "higher" else min)(known)
    return f"**{text}**" if text == f"{best:.{column.digits}f}" else text


def show_tests(content: dict[str, Any]) -> str:
    """Counts of the peers' own tests, run against our functions."""
    lines = ["## Tests of other projects, run on our functions", "", content["about"], ""]
    lines += ["| suite | passed | failed | not applicable |", "| --- | --- | --- | --- |"]
    for suite in content["suites"]:
        lines.append(
            f"| {suite['suite']} | {suite['passed']} | {len(suite['failed'])} | {len(suite['not_applicable'])} |"
        )
    lines += ["", "What was run:", ""]
    for suite in content["suites"]:
        files = sorted(suite["files"])
        ran = f"; files: {', '.join(files)}" if files else ""
        if len(files) > LISTED:
            ran = f"; {len(files)} files, named in `benchmarks/peers/results/tests.json`"
        lines.append(f"- {suite['suite']}: {suite['source']}{ran}")
    for title, key in (("Failed", "failed"), ("Not applicable", "not_applicable")):
        grouped: dict[str, int] = {}
        for suite in content["suites"]:
            for reason in suite[key].values():
                grouped[f"{suite['suite']}: {reason}"] = grouped.get(f"{suite['suite']}: {reason}", 0) + 1
        if grouped:
            lines += ["", f"{title}, by reason:", ""]
            lines += [f"- {reason} ({count})" for reason, count in grouped.items()]
    return "\n".join([*lines, ""])
