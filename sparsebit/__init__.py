"""Make a trained PyTorch model small and fast, and prove it."""

from sparsebit import graph
from sparsebit.errors import SparsebitError, SpecializationWarning
from sparsebit.graph.capture import QTracer, capture
from sparsebit.graph.ops import OpSpec, register_op

__version__ = "0.1.0"

__all__ = ["OpSpec", "QTracer", "SparsebitError", "SpecializationWarning", "capture", "graph", "register_op"]
