"""End to end figures of one output, added up over calls."""

from __future__ import annotations

import numpy as np
import torch

from sparsebit.export.proof.outputs import OutputTally


def test_figures_add_up_over_calls() -> None:
    tally = OutputTally("logits")
    tally.add(np.array([[1.0, 2.0], [4.0, 3.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tally.add(np.array([[0.0, 0.5]]), torch.tensor([[0.0, 1.0]]))
    found = tally.agreement()
    assert (found.difference, found.relative, found.samples, found.same_class) == (1.0, 0.25, 3, 2)
    assert found.sqnr_db == 10 * np.log10(31 / 2.25)
    assert str(found).startswith(
        "largest difference 1 (25.00% of the largest value), SQNR 11.4 dB, same class 2 of 3"
    )


def test_equal_outputs_and_other_shapes() -> None:
    same, other, images = OutputTally("a"), OutputTally("b"), OutputTally("c")
    same.add(np.zeros((2, 3)), torch.zeros(2, 3))
    other.add(np.zeros((2, 3)), torch.zeros(2, 4))
    images.add(np.full((1, 2, 2, 2), np.nan), torch.ones(1, 2, 2, 2))
    assert same.agreement().sqnr_db == 200 and same.agreement().relative == 0
    assert other.agreement().sqnr_db == -np.inf and images.agreement().difference == np.inf
    assert images.agreement().same_class is None  # an image has no class


def test_infinities_agree_with_themselves_only() -> None:
    masked = torch.tensor([-torch.inf, torch.nan, 1.0])
    for sign, difference in ((-1, 0.0), (1, np.inf)):
        tally = OutputTally("scores")
        tally.add(np.array([sign * np.inf, np.nan, 1.0], np.float32), masked)
        assert (tally.agreement().difference, tally.finite) == (difference, 1)
