"""Graph passes: each is a function that edits a graph and returns the number of changes, in a file of the same name."""

from sparsebit.graph.passes.pipeline import FOLD, SIMPLIFY, Pass, run_passes
from sparsebit.graph.passes.replace_patterns import register_replacement, unregister_replacement

__all__ = ["FOLD", "SIMPLIFY", "Pass", "register_replacement", "run_passes", "unregister_replacement"]
