"""The demo's language model: the same weights on every call, and no trace in the random numbers."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from sparsebit.demo import language_model


def test_it_is_the_same_every_time_and_draws_no_random_numbers_of_others() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, other = language_model(), language_model()
    assert torch.equal(torch.rand(2), expected) and not one.training
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one(torch.zeros(1, 4, dtype=torch.int64)).logits.shape == (1, 4, 96)
