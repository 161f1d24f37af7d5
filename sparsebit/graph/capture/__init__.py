"""Turn a model into one FX graph in one normal form."""

from sparsebit.graph.capture.frontend import capture
from sparsebit.graph.capture.module import CapturedModule
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.symbolic.tracer import QTracer
from sparsebit.graph.functional import ModeConstant

__all__ = ["CaptureReport", "CapturedModule", "ModeConstant", "Note", "QTracer", "capture"]
