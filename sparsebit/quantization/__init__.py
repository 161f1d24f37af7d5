"""Quantization: a plan for the graph, quantizers on its edges, one streaming pass to calibrate them."""

from sparsebit.quantization.modules.qmodules import QuantOpr, register_qmodule
from sparsebit.quantization.observers import OBSERVERS, register_observer
from sparsebit.quantization.plan import QuantPlan, make_plan
from sparsebit.quantization.quant_config import parse_qconfig
from sparsebit.quantization.quant_model import QuantModel
from sparsebit.quantization.quantizers import QUANTIZERS, Quantizer, register_quantizer

__all__ = [
    "OBSERVERS",
    "QUANTIZERS",
    "QuantModel",
    "QuantOpr",
    "QuantPlan",
    "Quantizer",
    "make_plan",
    "parse_qconfig",
    "register_observer",
    "register_qmodule",
    "register_quantizer",
]
