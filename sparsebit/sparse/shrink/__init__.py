"""Shrinking: from the channels to keep to a smaller model."""

from sparsebit.sparse.shrink.graph import shrink_graph, shrink_state_dict
from sparsebit.sparse.shrink.module import apply_plan, shrink_module
from sparsebit.sparse.shrink.plan import Edit, ShrinkPlan, make_plan

__all__ = [
    "Edit",
    "ShrinkPlan",
    "apply_plan",
    "make_plan",
    "shrink_graph",
    "shrink_module",
    "shrink_state_dict",
]
