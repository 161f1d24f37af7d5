"""Observers: each measures the range that a grid should cover, from a stream of data."""

from sparsebit.numerics import CodeType
from sparsebit.quantization.observers.aciq import ACIQ
from sparsebit.quantization.observers.across_processes import merge_across_processes, merge_states
from sparsebit.quantization.observers.base import (
    OBSERVERS,
    CalibrationError,
    Observer,
    Range,
    WholeTensorObserver,
    observe,
    register_observer,
    require_finite,
    require_range,
    require_state,
)
from sparsebit.quantization.observers.histogram import Histogram, HistogramObserver
from sparsebit.quantization.observers.kl_histogram import KLHistogram
from sparsebit.quantization.observers.minmax import MinMax
from sparsebit.quantization.observers.moving_average import MovingAverage
from sparsebit.quantization.observers.mse import MSE
from sparsebit.quantization.observers.percentile import Percentile

__all__ = [
    "ACIQ",
    "MSE",
    "OBSERVERS",
    "CalibrationError",
    "CodeType",
    "Histogram",
    "HistogramObserver",
    "KLHistogram",
    "MinMax",
    "MovingAverage",
    "Observer",
    "Percentile",
    "Range",
    "WholeTensorObserver",
    "merge_across_processes",
    "merge_states",
    "observe",
    "register_observer",
    "require_finite",
    "require_range",
    "require_state",
]
