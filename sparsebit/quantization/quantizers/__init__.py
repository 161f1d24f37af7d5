"""Quantizers: modules on the edges of the graph, with the arithmetic in ``numerics``."""

from sparsebit.quantization.quantizers.adaround import AdaRound
from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.dorefa import DoReFa
from sparsebit.quantization.quantizers.frozen import Frozen
from sparsebit.quantization.quantizers.lsq import LSQ
from sparsebit.quantization.quantizers.lsq_plus import LSQPlus
from sparsebit.quantization.quantizers.pact import PACT
from sparsebit.quantization.quantizers.registration import QUANTIZERS, register_quantizer
from sparsebit.quantization.quantizers.uniform import Uniform

__all__ = [
    "LSQ",
    "PACT",
    "QUANTIZERS",
    "AdaRound",
    "DoReFa",
    "Frozen",
    "LSQPlus",
    "Quantizer",
    "Uniform",
    "register_quantizer",
]
