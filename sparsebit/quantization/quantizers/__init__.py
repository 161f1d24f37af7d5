"""Quantizers: modules on the edges of the graph, thin over ``numerics``."""

from sparsebit.quantization.quantizers.base import QUANTIZERS, Quantizer, register_quantizer
from sparsebit.quantization.quantizers.uniform import Uniform

__all__ = ["QUANTIZERS", "Quantizer", "Uniform", "register_quantizer"]
