"""How often a model is right: samples, labels, structured outputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis.accuracy import first_tensor, has_labels
from sparsebit.errors import SparsebitError
from sparsebit.report import measure

X, Y = torch.eye(4), torch.arange(4)


def test_accuracy_counts_samples_not_batches() -> None:
    model = nn.Identity()
    wrong = (X[:1], torch.tensor([3]))
    assert measure(model, [(X, Y), wrong], shown=False) == pytest.approx(4 / 5)
    assert measure(model, [{"input": X, "labels": Y}], shown=False) == 1


def test_what_cannot_be_counted_is_left_out_or_refused() -> None:
    model, empty = nn.Identity(), (X[:0], Y[:0])
    assert measure(model, [empty, (X, Y)], shown=False) == 1
    with pytest.raises(SparsebitError, match="no samples"):
        measure(model, [empty], shown=False)
    for label in (-1, 4):
        with pytest.raises(SparsebitError, match=f"label {label} is out of range"):
            measure(model, [(X, torch.full((4,), label))], shown=False)


def test_the_mode_is_as_before() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4)).train()
    model[1].eval()  # frozen for fine-tuning
    measure(model, [(X, Y)], shown=False)
    assert model.training and model[0].training and not model[1].training


def test_labels_are_found_or_asked_for() -> None:
    assert has_labels((X, Y)) and not has_labels(X) and not has_labels((X, X))
    with pytest.raises(SparsebitError, match="no labels"):
        measure(nn.Identity(), [X], shown=False)
    with pytest.raises(SparsebitError, match="no batch"):
        measure(nn.Identity(), [], shown=False)
    with pytest.raises(SparsebitError, match=r"(?s)label -100 is out of range.*labels that do not count"):
        measure(nn.Identity(), [(X, torch.tensor([0, 1, -100, 3]))], shown=False)
    with pytest.raises(SparsebitError, match="expected: labels of shape \\(1,\\)"):
        measure(nn.Identity(), [(X[:1], torch.tensor(0))], shown=False)


def test_logits_are_found_in_structured_outputs() -> None:
    assert first_tensor({"loss": Y, "logits": X}) is X
    assert first_tensor(SimpleNamespace(logits=X)) is X
    assert first_tensor((X, Y)) is X


def test_a_model_that_writes_to_its_inputs_is_measured_on_the_same_numbers_again() -> None:
    def flips(x: Tensor) -> Tensor:
        return x.mul_(-1)

    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    batches = [(x, torch.tensor([1, 0]))]
    assert [measure(flips, batches), measure(flips, batches)] == [1.0, 1.0]
