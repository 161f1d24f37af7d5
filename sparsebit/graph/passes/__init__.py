"""Graph passes: each a function that edits a graph and returns how many changes it made, in the file of its name."""

from sparsebit.graph.passes.pipeline import FOLD, SIMPLIFY, Pass, run_passes
from sparsebit.graph.passes.replace_patterns import register_replacement, unregister_replacement

__all__ = ["FOLD", "SIMPLIFY", "Pass", "register_replacement", "run_passes", "unregister_replacement"]
