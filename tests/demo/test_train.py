"""Training of the demo's network."""

from __future__ import annotations

import pytest
import torch

from sparsebit.demo import held_out_data
from sparsebit.demo.train import one_thread, train
from sparsebit.report import measure


def test_training_from_nothing_learns() -> None:
    from sparsebit.demo.digits_net import DigitsNet

    model = DigitsNet(8)
    train(model, 3)
    assert measure(model, held_out_data()) > 0.7


def test_one_thread_is_for_the_block_alone() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="inside"), one_thread():
        assert torch.get_num_threads() == 1
        raise ValueError("inside")
    assert torch.get_num_threads() == before
