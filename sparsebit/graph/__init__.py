"""The program being compressed: captured, described by operators, matched, rewritten, run and shown."""

from sparsebit.graph import ops, passes, run, show
from sparsebit.graph.capture import CapturedModule, CaptureReport, QTracer, capture

__all__ = ["CaptureReport", "CapturedModule", "QTracer", "capture", "ops", "passes", "run", "show"]
