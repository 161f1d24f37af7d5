"""The symbolic tracer under its old name."""

from __future__ import annotations

from sparsebit.graph.capture.symbolic import tracer
from sparsebit.quantization import quant_tracer


def test_it_is_the_tracer_that_capture_uses() -> None:
    assert quant_tracer.QTracer is tracer.QTracer
