"""The groups of channels of a small net."""

from __future__ import annotations

from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import ChannelGroups, find_groups


def groups_of(net: nn.Module, *inputs: Tensor) -> ChannelGroups:
    """What ``find_groups`` finds in it."""
    return find_groups(capture(net.eval(), inputs))
