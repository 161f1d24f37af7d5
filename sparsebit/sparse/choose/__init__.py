"""What is removed: scores, budgets, costs, and the two kinds of pruner that combine them."""

from sparsebit.sparse.choose.channel_pruner import ChannelPruner, require_channels
from sparsebit.sparse.choose.from_config import make_pruner, runtime_latency
from sparsebit.sparse.choose.pruner import Latency, Pruner

__all__ = ["ChannelPruner", "Latency", "Pruner", "make_pruner", "require_channels", "runtime_latency"]
