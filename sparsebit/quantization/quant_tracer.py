"""The symbolic tracer, under the name and in the place the old toolkit had it."""

from sparsebit.graph.capture.symbolic.tracer import QTracer

__all__ = ["QTracer"]
