"""TensorRT's rules for explicitly quantized models, checked on the file alone, rule by rule.

From the importer's source (onnx-tensorrt 10) and the developer guide; no engine is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsebit.export.forms.editor import WEIGHTED, array_of, attribute, dequantized
from sparsebit.runtime.packages import require

_UNSUPPORTED = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")
HIGHEST_OPSET = 25
_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One violation of one rule. An ``error`` is rejected or computes other numbers; ``advice`` concerns speed."""

    rule: str
    level: Literal["error", "advice"]
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.rule}: {self.node}: {self.text}"


def _is_bias(node: Any) -> bool:
    codes = node.inputs[0].const_value
    return codes is not None and codes.dtype.name == "INT32"


def _is_weight(node: Any) -> bool:
    return node.op_type == "DequantizeLinear" and node.inputs[0].const_value is not None


def _zero_point(node: Any) -> Any:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _check_pair(node: Any) -> Iterator[Finding]:
    """Int32 biases have a separate rule: they are not imported at all."""
    if not _is_bias(node):
        for rule in (_check_zero_point, _check_type, _check_scale):
            yield from rule(node)
    elif node.op_type == "DequantizeLinear":
        yield _error("float biases", node, "an int32 bias is not imported; leave biases in float")


def _check_zero_point(node: Any) -> Iterator[Finding]:
    zero_point = array_of(_zero_point(node))
    if zero_point is not None and np.any(zero_point.astype(np.float32) != 0):
        yield _error("zero point 0", node, "the importer accepts only zero points of 0; use symmetric grids")


def _check_type(node: Any) -> Iterator[Finding]:
    zero_point, tensor = _zero_point(node), node.inputs[0].const_value
    stored = None if zero_point is None else zero_point.const_value
    kind = "INT8" if stored is None else stored.dtype.name
    if kind == "UINT8":
        yield _error("signed values", node, "uint8 is read as int8: values above 127 saturate")
    elif kind not in ("INT8", "INT4", "FLOAT8E4M3FN"):
        yield _error("types", node, "only int8, int4 and float8 e4m3 are read")
    elif kind == "INT4" and not _is_weight(node):
        yield _error("types", node, "int4 is for weights only")
    if tensor is not None and tensor.dtype.name == "INT4" and len(tensor.shape) and tensor.shape[-1] % 2:
        yield _error("int4 shape", node, "the last dimension of an int4 weight must be even")


def _check_scale(node: Any) -> Iterator[Finding]:
    scale = array_of(node.inputs[1])
    if scale is None:
        yield _error("constant scale", node, "the scale is computed; it must be a constant")
        return
    if np.any(scale <= 0):
        yield _error("positive scale", node, "a scale is not positive")
    if scale.size > 1 and not _is_weight(node):
        text = f"{scale.size} scales on an activation; only weights may have several"
        yield _error("activations per tensor", node, text)


def _check_weight_axis(node: Any) -> Iterator[Finding]:
    maker = node.inputs[1].producer() if len(node.inputs) > 1 else None
    scale = array_of(maker.inputs[1]) if maker is not None and _is_weight(maker) else None
    if scale is None:
        return
    if scale.ndim == 0:
        text = "one scale for the complete weight; one per output channel is as fast and more accurate"
        yield _advice("weights per channel", maker, text)
    wanted = _OUTPUT_AXIS.get(node.op_type, 0 if attribute(node, "transB", 0) else 1)
    per_channel = scale.ndim == 1 and not attribute(maker, "block_size", 0)
    if per_channel and attribute(maker, "axis", 1) != wanted:
        text = f"scales lie along axis {attribute(maker, 'axis', 1)}, not {wanted}"
        yield _error("weights per output channel", maker, text)


def _check_inputs(node: Any) -> Iterator[Finding]:
    if len(node.inputs) > 1:
        first, second = (dequantized(value) is not None for value in node.inputs[:2])
        if first != second:
            missing = "input" if second else "weight"
            yield _advice("both inputs", node, f"its {missing} is in float, so it runs in float")


def _check_operator(node: Any) -> Iterator[Finding]:
    yield _error("operators", node, f"{node.op_type} is not imported; write it with Q/DQ")


def _check_residual_add(node: Any) -> Iterator[Finding]:
    """An add of a convolution's result and a skip branch fuses into the convolution if only the skip is quantized."""
    behind_conv = [_comes_from_conv(value) for value in node.inputs]
    if len(node.inputs) != 2 or not any(behind_conv):
        return
    quantized = [dequantized(value) is not None for value in node.inputs]
    blocked = [
        behind_conv[at] and quantized[at] and (quantized[other] or behind_conv[other])
        for at, other in ((0, 1), (1, 0))
    ]
    if any(blocked):
        text = "the convolution's own branch is quantized, which prevents the add from being fused into it"
        yield _advice("residual add", node, text)
    elif not any(quantized):
        text = "the skip branch is in float; quantized, it would be read as int8"
        yield _advice("residual add", node, text)


def _comes_from_conv(value: Any) -> bool:
    maker = value.producer()
    while maker is not None and maker.op_type in ("DequantizeLinear", "QuantizeLinear", "Clip"):
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type == "Conv"


def _check_opset(version: int) -> Iterator[Finding]:
    if not 9 <= version <= HIGHEST_OPSET:
        text = f"opset {version} is outside 9 to {HIGHEST_OPSET}"
        yield Finding(rule="opset", level="error", node="model", text=text)
    elif version > 20:
        text = f"opset {version} needs TensorRT 10.1 or later"
        yield Finding(rule="opset", level="advice", node="model", text=text)


# A rule, and the operators whose nodes it checks.
RULES: tuple[tuple[Callable[[Any], Iterator[Finding]], tuple[str, ...]], ...] = (
    (_check_pair, ("QuantizeLinear", "DequantizeLinear")),
    (_check_weight_axis, WEIGHTED),
    (_check_operator, _UNSUPPORTED),
    (_check_inputs, WEIGHTED),
    (_check_residual_add, ("Add",)),
)


def check_tensorrt(path: str | Path) -> tuple[Finding, ...]:
    """Every place in a file that TensorRT would refuse, read differently or not run on integers."""
    model = require("onnx_ir").load(path)
    nodes = [(rule, node) for rule, types in RULES for node in model.graph if node.op_type in types]
    found = [finding for rule, node in nodes for finding in rule(node)]
    return (*found, *_check_opset(model.opset_imports.get("", 0)))


def _error(rule: str, node: Any, text: str) -> Finding:
    return Finding(rule=rule, level="error", node=node.name, text=text)


def _advice(rule: str, node: Any, text: str) -> Finding:
    return Finding(rule=rule, level="advice", node=node.name, text=text)
