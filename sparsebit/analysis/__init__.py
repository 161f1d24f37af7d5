"""Measurements on a captured or quantized model: its cost, its errors, and the bits it needs."""

from sparsebit.analysis.bits.choose_bits import (
    BitChoice,
    BitPoint,
    LatencyTable,
    choose_bits,
    measure_latencies,
)
from sparsebit.analysis.bits.curvature import Curvature
from sparsebit.analysis.bits.layer_bits import FLOAT, with_layer_bits
from sparsebit.analysis.bits.mixed_precision import mixed_precision
from sparsebit.analysis.bits.sensitivity import Sensitivity, sensitivity
from sparsebit.analysis.latency import RuntimeClock, runtime_latency
from sparsebit.analysis.node_cost import CostReport, CostRow, cost
from sparsebit.analysis.profiling.agreement import Agreement
from sparsebit.analysis.profiling.error_profile import Advice, ErrorProfile, LayerError
from sparsebit.analysis.profiling.profile import profile
from sparsebit.analysis.profiling.tensor_error import TensorError

__all__ = [
    "FLOAT",
    "Advice",
    "Agreement",
    "BitChoice",
    "BitPoint",
    "CostReport",
    "CostRow",
    "Curvature",
    "ErrorProfile",
    "LatencyTable",
    "LayerError",
    "RuntimeClock",
    "Sensitivity",
    "TensorError",
    "choose_bits",
    "cost",
    "measure_latencies",
    "mixed_precision",
    "profile",
    "runtime_latency",
    "sensitivity",
    "with_layer_bits",
]
