"""The demo's network and its stored weights."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("sklearn")

from sparsebit.demo import DigitsNet, held_out_data, net
from sparsebit.report import measure


def test_the_stored_weights_are_right_on_images_they_were_not_trained_on() -> None:
    model = net()
    assert not model.training and all(p.dtype == torch.float32 for p in model.parameters())
    assert measure(model, held_out_data()) > 0.99


def test_any_width_gives_ten_logits() -> None:
    assert DigitsNet(8).eval()(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
