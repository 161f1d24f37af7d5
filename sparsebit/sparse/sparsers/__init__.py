"""Pruning criteria: each scores what may be removed; the lowest scores are removed first."""

from sparsebit.sparse.sparsers import of_data, of_weights
from sparsebit.sparse.sparsers.base import SPARSERS, Rows, Sparser, make_sparser, register_sparser

__all__ = ["SPARSERS", "Rows", "Sparser", "make_sparser", "of_data", "of_weights", "register_sparser"]
