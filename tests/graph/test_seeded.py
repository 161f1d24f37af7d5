"""Random numbers inside a block depend on its seed, and those after it do not depend on the block."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.graph.seeded import seeded


def test_the_numbers_inside_depend_on_the_seed_and_those_after_it_do_not() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1, nn.Identity()):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with pytest.raises(ValueError, match="stopped"), seeded(1, nn.Identity()):
        assert torch.equal(torch.rand(3), first)
        raise ValueError("stopped")
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), expected)
