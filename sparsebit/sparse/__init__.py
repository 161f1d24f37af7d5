"""Pruning: what must be removed together, what to remove, and the resulting smaller model."""

from sparsebit.config import SConfig
from sparsebit.sparse.channels import ChannelGroups, find_groups
from sparsebit.sparse.evidence.statistic import STATISTICS, Statistic, register_statistic
from sparsebit.sparse.masking.holding import hold, hold_zeros, release
from sparsebit.sparse.pruning import prune
from sparsebit.sparse.report import SparseReport
from sparsebit.sparse.semi_structured import SparseKernelReport, use_sparse_kernels
from sparsebit.sparse.shrink import ShrinkPlan, make_plan, shrink_graph, shrink_state_dict
from sparsebit.sparse.sparse_config import parse_sconfig
from sparsebit.sparse.sparse_model import SparseModel
from sparsebit.sparse.sparsers import SPARSERS, Rows, Sparser, register_sparser
from sparsebit.sparse.storage import load, save

__all__ = [
    "SPARSERS",
    "STATISTICS",
    "ChannelGroups",
    "Rows",
    "SConfig",
    "ShrinkPlan",
    "SparseKernelReport",
    "SparseModel",
    "SparseReport",
    "Sparser",
    "Statistic",
    "find_groups",
    "hold",
    "hold_zeros",
    "load",
    "make_plan",
    "parse_sconfig",
    "prune",
    "register_sparser",
    "register_statistic",
    "release",
    "save",
    "shrink_graph",
    "shrink_state_dict",
    "use_sparse_kernels",
]
