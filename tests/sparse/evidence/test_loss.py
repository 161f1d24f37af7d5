"""The loss of a batch: what it is called with, and what it may be."""

from __future__ import annotations

import pytest
import torch

from sparsebit.batches import Batch, DataError
from sparsebit.sparse.evidence.loss import measure_loss


def test_the_loss_gets_the_output_and_the_rest() -> None:
    w = torch.ones((), requires_grad=True)
    assert float(measure_loss(Batch((), {}, (2,)), w, lambda output, target: output * target).detach()) == 2
    assert measure_loss(Batch((), {}), {"loss": w}, None) is w


def test_an_output_without_a_loss_needs_one() -> None:
    with pytest.raises(DataError, match=r"no loss to differentiate[\s\S]*pass loss="):
        measure_loss(Batch((), {}), torch.ones(2), None)
