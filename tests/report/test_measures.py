"""Accuracy, latency, size, words and files: what the numbers of a report are made of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sparsebit.analysis.accuracy import first_tensor, has_labels
from sparsebit.analysis.size import float_bytes, quantized_bytes
from sparsebit.errors import SparsebitError
from sparsebit.report import measure, report_search, write_text
from sparsebit.report.content import Measure
from sparsebit.report.numbers import change, quantity
from sparsebit.report.sentence import summarize
from tests.report.samples import batches, quantized

X, Y = torch.eye(4), torch.arange(4)


def test_accuracy_counts_samples_not_batches() -> None:
    model = nn.Identity()
    wrong = (X[:1], torch.tensor([3]))
    assert measure(model, [(X, Y), wrong], shown=False) == pytest.approx(4 / 5)
    assert measure(model, [{"input": X, "labels": Y}], shown=False) == 1


def test_the_mode_is_as_before() -> None:
    model = nn.Dropout(0.5).train()
    measure(model, [(X, Y)], shown=False)
    assert model.training


def test_labels_are_found_or_asked_for() -> None:
    assert has_labels((X, Y)) and not has_labels(X) and not has_labels((X, X))
    with pytest.raises(SparsebitError, match="no labels"):
        measure(nn.Identity(), [X], shown=False)
    with pytest.raises(SparsebitError, match="no batch"):
        measure(nn.Identity(), [], shown=False)


def test_logits_are_found_in_structured_outputs() -> None:
    assert first_tensor({"loss": Y, "logits": X}) is X
    assert first_tensor(SimpleNamespace(logits=X)) is X
    assert first_tensor((X, Y)) is X


def test_sizes_follow_the_bits() -> None:
    eight, four = quantized("int8_onnxruntime"), quantized("w4a8")
    assert quantized_bytes(four) < quantized_bytes(eight) < float_bytes(eight) / 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(4e6, 1e6, "4.0× smaller"), (1e6, 2e6, "2.0× larger"), (1e6, 1e6, "1.0× smaller")],
)
def test_changes_in_words(before: float, after: float, words: str) -> None:
    assert change(Measure(name="size", before=before, after=after, unit="bytes")) == words


def test_quantities_have_units() -> None:
    assert [quantity(v, "seconds") for v in (2.5, 0.0025, 0.0000025)] == ["2.5 s", "2.5 ms", "2 µs"]


def test_the_sentence_says_what_was_done() -> None:
    plan = quantized("w4a8").plan
    size = Measure(name="size", before=8, after=2, unit="bytes")
    same = Measure(name="accuracy", before=0.9, after=0.9, unit="share", better="higher")
    assert summarize("net", plan, [size, same]) == (
        "net was quantized to 4- to 8-bit weights and 8-bit activations, which made it 4.0× smaller; "
        "its accuracy stayed at 90.0%."
    )


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
