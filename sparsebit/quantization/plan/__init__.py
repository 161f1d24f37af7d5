"""Placement: graph, config and target give a ``QuantPlan``."""

from sparsebit.quantization.plan.place import make_plan
from sparsebit.quantization.plan.plan import PlannedEdge, PlannedTensor, QuantPlan

__all__ = ["PlannedEdge", "PlannedTensor", "QuantPlan", "make_plan"]
