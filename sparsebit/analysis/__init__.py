"""Measurements on a captured model: what it costs, where it errs."""

from sparsebit.analysis.cost import CostReport, CostRow, cost

__all__ = ["CostReport", "CostRow", "cost"]
