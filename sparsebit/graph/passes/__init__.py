"""Graph passes: each a function that edits a graph and returns how many changes it made."""

from sparsebit.graph.passes.canonicalize_shape import canonicalize_shape
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.passes.pipeline import FOLD, SIMPLIFY, Pass, run_passes
from sparsebit.graph.passes.remove_dead_nodes import remove_dead_nodes
from sparsebit.graph.passes.remove_dropout import remove_dropout
from sparsebit.graph.passes.remove_identity import remove_identity
from sparsebit.graph.passes.replace_patterns import (
    register_replacement,
    replace_patterns,
    unregister_replacement,
)
from sparsebit.graph.passes.unbind_to_select import unbind_to_select

__all__ = [
    "FOLD",
    "SIMPLIFY",
    "Pass",
    "canonicalize_shape",
    "fold_batch_norm",
    "register_replacement",
    "remove_dead_nodes",
    "remove_dropout",
    "remove_identity",
    "replace_patterns",
    "run_passes",
    "unbind_to_select",
    "unregister_replacement",
]
