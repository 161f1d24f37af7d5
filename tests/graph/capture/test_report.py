"""What capturing decided, in words."""

from __future__ import annotations

from typing import get_args

from sparsebit.graph.capture import CaptureReport, Note
from sparsebit.graph.capture.report import WARNED, NoteKind
from sparsebit.graph.capture.source import Source

HERE = Source(__file__, 1, "forward")


def test_a_note_names_its_line_where_there_is_one() -> None:
    assert str(Note("data", "a branch was fixed")) == "a branch was fixed"
    assert str(Note("data", "a branch was fixed", HERE)) == f"a branch was fixed ({HERE})"
    assert __file__ in str(Note("data", "a branch was fixed", HERE))


def test_a_note_is_added_once() -> None:
    report = CaptureReport()
    for source in (HERE, HERE, None, Source(__file__, 2, "forward")):
        report.add(Note("size-fixed", "range(4)", source))
    assert len(report.notes) == 3


def test_notes_are_picked_by_kind_in_order() -> None:
    report = CaptureReport()
    for kind in ("data", "hooks", "data", "random"):
        report.add(Note(kind, f"{kind} {len(report.notes)}"))  # type: ignore[arg-type]
    assert [note.text for note in report.of_kind("random", "data")] == ["data 0", "data 2", "random 3"]
    assert report.of_kind("mode") == []


def test_a_report_reads_as_a_list() -> None:
    report = CaptureReport(frontend="record")
    report.add(Note("hooks", "hooks on stem"))
    assert str(report) == "captured by record\n  hooks: hooks on stem"
    assert str(CaptureReport()) == "captured by hand"


def test_only_known_kinds_are_warned_about() -> None:
    assert set(WARNED) < set(get_args(NoteKind))
