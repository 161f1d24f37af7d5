"""The symbolic tracer, under its name and import path in the old toolkit."""

from sparsebit.graph.capture.symbolic.tracer import QTracer

__all__ = ["QTracer"]
