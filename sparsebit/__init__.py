"""Make a trained PyTorch model small and fast, and prove it."""

from sparsebit import graph
from sparsebit.errors import SparsebitError, SpecializationWarning
from sparsebit.graph.capture import QTracer, capture
from sparsebit.graph.ops import OpSpec, register_op
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.recipes import compress
from sparsebit.sparse import SparseModel, parse_sconfig

__version__ = "0.1.0"

__all__ = [
    "OpSpec",
    "QTracer",
    "QuantModel",
    "SparseModel",
    "SparsebitError",
    "SpecializationWarning",
    "capture",
    "compress",
    "graph",
    "parse_qconfig",
    "parse_sconfig",
    "register_op",
]
