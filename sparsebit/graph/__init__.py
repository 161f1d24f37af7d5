"""The program being compressed: capture, operators, passes and views of a graph."""

from sparsebit.graph import capture, ops, passes, run, show
from sparsebit.graph.capture import CapturedModule, CaptureReport, QTracer

__all__ = ["CaptureReport", "CapturedModule", "QTracer", "capture", "ops", "passes", "run", "show"]
