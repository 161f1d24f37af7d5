"""What is left of a tensor for a choice of channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.shrink.alive import Alive

NET = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_positions_and_shapes_that_stay() -> None:
    groups = find_groups(capture(NET, torch.zeros(2, 3)))
    kept = torch.tensor([True, False, True, False])
    alive = Alive(groups, {"0": kept})
    value = groups.trace.values["_1"]
    assert isinstance(value, Labels)
    assert alive.shape(value) == (2, 2) and not alive.nothing_goes
    flags = alive.along(value, 1)
    assert flags is not None and torch.equal(flags, kept) and alive.along(value, 0) is None
    assert Alive(groups, {}).nothing_goes and Alive(groups, {}).shape(value) == (2, 4)


def test_a_choice_that_a_group_does_not_allow_is_refused() -> None:
    groups = find_groups(capture(NET, torch.zeros(2, 3)))
    with pytest.raises(GraphError, match="cannot be empty"):
        Alive(groups, {"0": torch.zeros(4, dtype=torch.bool)})
