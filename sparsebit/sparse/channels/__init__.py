"""Which channels of a model can be removed, and what has to be removed with each: channel groups."""

from sparsebit.sparse.channels.find import find_groups
from sparsebit.sparse.channels.group import ChannelGroups, Group, Role, Slice, mask_tensors

__all__ = ["ChannelGroups", "Group", "Role", "Slice", "find_groups", "mask_tensors"]
