"""The page by its structure: complete, self-contained, safe, labelled."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.report import Report, render, save_report
from sparsebit.report.page import _asset
from tests.report.samples import HOSTILE, sample

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Tags that must be closed are, and attributes are kept for asking."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page(report: Report) -> Page:
    return Page(render(report))


def test_everything_promised_is_there() -> None:
    found = page(sample())
    for words in (
        "which made it", "accuracy", "size", "latency", "87.00 %", "2.9× faster", "Graph", "Layer by layer",
        "Distributions on the grids", "Recipes that were tried", "Operators in float, and why", "to reproduce it",
        "QSCHEME",
    ):  # fmt: skip
        assert words in found.text, words
    classes = " ".join(svg.get("class", "") for svg in found.named("svg"))
    assert "graph" in classes and "pareto" in classes and classes.count("histogram") >= 6


def test_what_stayed_in_float_is_named_with_its_reason() -> None:
    found = page(sample("int8_onnxruntime"))
    assert "erf" in found.text


def test_nothing_comes_from_elsewhere() -> None:
    text = render(sample())
    found = Page(text)
    assert not found.named("link") and not found.named("img")
    assert all("src" not in attributes for _, attributes in found.tags)
    assert "http:" not in text and "https:" not in text and "url(" not in _asset("page.css")
    policy = next(
        meta["content"]
        for meta in found.named("meta")
        if "content" in meta and "default-src" in meta["content"]
    )
    assert "default-src 'none'" in policy


def test_names_cannot_run_code() -> None:
    text = render(sample())
    assert HOSTILE not in text and "&lt;script&gt;alert(1)" in text
    assert text.count("<script>") == 1


def test_links_lead_somewhere_and_ids_are_unique() -> None:
    found = page(sample())
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"] for attributes in found.named("a")]
    assert all(target.startswith("#") and target[1:] in ids for target in targets)


def test_pictures_and_controls_have_names() -> None:
    found = page(sample())
    assert all(svg.get("aria-label") for svg in found.named("svg"))
    assert [html["lang"] for html in found.named("html")] == ["en"]
    labelled = [a for t, a in found.tags if a.get("role") in ("application", "region", "group")]
    assert labelled and all(attributes.get("aria-label") for attributes in labelled)
    assert len(found.named("h1")) == 1 and len(found.named("main")) == 1


def test_an_almost_empty_report_is_a_page_too() -> None:
    found = page(Report(title="net", sentence="Nothing was done."))
    assert "Nothing was done." in found.text and "that can be quantized is quantized" in found.text
    bare = dataclasses.replace(sample(), pareto=(), nodes=(), measures=(), output_sqnr=float("inf"))
    assert "exact" in page(bare).text


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_report(tmp_path / "deep" / "report.html", sample())
    before = path.read_text()
    monkeypatch.setattr("os.replace", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_report(path, Report(title="other", sentence=""))
    assert path.read_text() == before and [each.name for each in path.parent.iterdir()] == ["report.html"]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_path_comes_first(tmp_path: Path) -> None:
    with pytest.raises(SparsebitError, match=r"no report to write(.|\n)*save_report\('report.html', collect"):
        save_report(sample(), tmp_path / "report.html")  # type: ignore[arg-type]
