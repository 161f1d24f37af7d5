"""Who makes a parameter from another one says so, and whoever follows hears of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph import replaced_parameters
from sparsebit.graph.capture import capture
from sparsebit.graph.passes import FOLD, run_passes
from sparsebit.graph.replaced_parameters import announce_replacement, follow_replacements


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    monkeypatch.setattr(replaced_parameters, "_FOLLOWERS", [])
    found: list[tuple[Tensor, Tensor]] = []
    follow_replacements(lambda old, new: found.append((old, new)))
    return found


def test_followers_hear_of_the_new_one(heard: list[tuple[Tensor, Tensor]]) -> None:
    old, new = torch.zeros(1), torch.ones(1)
    assert announce_replacement(old, new) is new
    # Nothing took anything's place.
    assert announce_replacement(None, new) is announce_replacement(new, new) is new
    assert len(heard) == 1 and heard[0][0] is old and heard[0][1] is new


def test_folding_a_batch_norm_announces_the_new_weight(heard: list[tuple[Tensor, Tensor]]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    gm = capture(model, torch.zeros(1, 3, 8, 8))
    run_passes(gm, FOLD)
    assert any(old is model[0].weight and new is gm.get_parameter("0.weight") for old, new in heard)
