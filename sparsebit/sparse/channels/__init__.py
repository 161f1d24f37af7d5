"""Channel groups: which channels of a model can be removed, and what must be removed with each."""

from sparsebit.sparse.channels.find import find_groups
from sparsebit.sparse.channels.group import ChannelGroups, Group, Role, Slice, mask_tensors

__all__ = ["ChannelGroups", "Group", "Role", "Slice", "find_groups", "mask_tensors"]
