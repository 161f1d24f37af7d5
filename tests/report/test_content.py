"""What a report says, as data."""

from __future__ import annotations

import math

from sparsebit.report import Measure, Report


def test_a_measure_knows_how_many_times_better_it_became() -> None:
    assert Measure(name="size", before=8.0, after=2.0).ratio == 4
    assert Measure(name="size", before=8.0, after=0.0).ratio == math.inf


def test_a_report_needs_a_title_and_a_sentence_alone() -> None:
    report = Report(title="net", sentence="net was left as it is.")
    assert report.measures == report.layers == report.notes == () and report.output_sqnr is None
