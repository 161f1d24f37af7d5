"""The pruning zoo: small structures, each of which some pruner gets wrong."""

from tests.sparse.zoo import channel_moves, convolution, sequence
from tests.sparse.zoo.entry import STRUCTURES, Structure

__all__ = ["STRUCTURES", "Structure", "channel_moves", "convolution", "sequence"]
