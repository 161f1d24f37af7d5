"""Pruning criteria: each scores what may go; the lowest go first."""

from sparsebit.sparse.sparsers.activation_norm import ActivationNorm
from sparsebit.sparse.sparsers.base import (
    ACTIVATIONS,
    GRADIENTS,
    SPARSERS,
    Need,
    Rows,
    Sparser,
    make_sparser,
    register_sparser,
)
from sparsebit.sparse.sparsers.fisher import Fisher
from sparsebit.sparse.sparsers.fpgm import FPGM
from sparsebit.sparse.sparsers.gradient_weight import GradientWeight
from sparsebit.sparse.sparsers.hessian import HessianDiagonal
from sparsebit.sparse.sparsers.hrank import HRank
from sparsebit.sparse.sparsers.lamp import LAMP
from sparsebit.sparse.sparsers.norms import L0Norm, L1Norm, L2Norm
from sparsebit.sparse.sparsers.random_choice import Random
from sparsebit.sparse.sparsers.slimming import Slimming
from sparsebit.sparse.sparsers.taylor import Taylor, Taylor2

__all__ = [
    "ACTIVATIONS",
    "FPGM",
    "GRADIENTS",
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
    "Need",
    "Random",
    "Rows",
    "Slimming",
    "Sparser",
    "Taylor",
    "Taylor2",
    "make_sparser",
    "register_sparser",
]
