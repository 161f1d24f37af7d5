"""Pruning criteria: each scores what may go; the lowest go first."""

from sparsebit.sparse.sparsers.activation import ActivationNorm, HRank
from sparsebit.sparse.sparsers.base import SPARSERS, Rows, Sparser, make_sparser, register_sparser
from sparsebit.sparse.sparsers.fpgm import FPGM
from sparsebit.sparse.sparsers.loss_change import Fisher, GradientWeight, HessianDiagonal, Taylor, Taylor2
from sparsebit.sparse.sparsers.magnitude import LAMP, L0Norm, L1Norm, L2Norm
from sparsebit.sparse.sparsers.random_choice import Random
from sparsebit.sparse.sparsers.slimming import Slimming

__all__ = [
    "FPGM",
    "LAMP",
    "SPARSERS",
    "ActivationNorm",
    "Fisher",
    "GradientWeight",
    "HRank",
    "HessianDiagonal",
    "L0Norm",
    "L1Norm",
    "L2Norm",
    "Random",
    "Rows",
    "Slimming",
    "Sparser",
    "Taylor",
    "Taylor2",
    "make_sparser",
    "register_sparser",
]
