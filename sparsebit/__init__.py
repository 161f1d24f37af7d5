"""Make a trained PyTorch model small and fast, and verify the result."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing has it; importing typing takes longer than everything else here
if TYPE_CHECKING:
    from sparsebit import graph, llm
    from sparsebit.errors import SparsebitError, SpecializationWarning
    from sparsebit.export.verb import export_onnx
    from sparsebit.graph.capture import QTracer, capture
    from sparsebit.graph.ops import OpSpec, register_op
    from sparsebit.quantization import QuantModel, parse_qconfig
    from sparsebit.quantization.verb import quantize
    from sparsebit.recipes import compress
    from sparsebit.sparse import SparseModel, parse_sconfig, prune

__version__ = "0.2.0"

__all__ = [
    "OpSpec",
    "QTracer",
    "QuantModel",
    "SparseModel",
    "SparsebitError",
    "SpecializationWarning",
    "capture",
    "compress",
    "export_onnx",
    "graph",
    "llm",
    "parse_qconfig",
    "parse_sconfig",
    "prune",
    "quantize",
    "register_op",
]

_PLACES = {
    "OpSpec": "sparsebit.graph.ops",
    "QTracer": "sparsebit.graph.capture",
    "QuantModel": "sparsebit.quantization",
    "SparseModel": "sparsebit.sparse",
    "SparsebitError": "sparsebit.errors",
    "SpecializationWarning": "sparsebit.errors",
    "capture": "sparsebit.graph.capture",
    "compress": "sparsebit.recipes",
    "export_onnx": "sparsebit.export.verb",
    "parse_qconfig": "sparsebit.quantization",
    "parse_sconfig": "sparsebit.sparse",
    "prune": "sparsebit.sparse",
    "quantize": "sparsebit.quantization.verb",
    "register_op": "sparsebit.graph.ops",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public name, imported at its first use: torch takes seconds to import, ``sparsebit --help`` should not."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name not in _PLACES:
            return importlib.import_module(f"{__name__}.{name}")
        found = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
