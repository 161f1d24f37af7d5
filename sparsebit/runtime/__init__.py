"""Open exported files in the runtimes installed here, run them, and time calls."""

from sparsebit.runtime.onnx_file import OnnxFile
from sparsebit.runtime.session import RUNTIMES, InputInfo, Session, SessionError, open_session
from sparsebit.runtime.timing import (
    Latency,
    PairedClock,
    Ratio,
    Timings,
    compare_latency,
    time_call,
)

__all__ = [
    "RUNTIMES",
    "InputInfo",
    "Latency",
    "OnnxFile",
    "PairedClock",
    "Ratio",
    "Session",
    "SessionError",
    "Timings",
    "compare_latency",
    "open_session",
    "time_call",
]
