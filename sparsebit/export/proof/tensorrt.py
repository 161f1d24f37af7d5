"""TensorRT's rules for explicitly quantized models, checked on the file alone, rule by rule.

From the importer's source (onnx-tensorrt 10) and the developer guide; no engine is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsebit.runtime.packages import require

_INT8, _UINT8, _INT4, _FLOAT8 = 3, 2, 22, 17
_UNSUPPORTED = (*("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"),)
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
HIGHEST_OPSET = 25
_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One place that breaks one rule. An ``error`` is refused or computes other numbers; ``advice`` costs speed."""

    rule: str
    level: Literal["error", "advice"]
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.rule}: {self.node}: {self.text}"


class _Graph:
    def __init__(self, proto: Any, folder: Path) -> None:
        self.proto, self.folder = proto, str(folder)
        self.nodes = list(proto.graph.node)
        self.tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def array(self, name: str) -> Any:
        tensor = self.tensors.get(name)
        return None if tensor is None else require("onnx").numpy_helper.to_array(tensor, base_dir=self.folder)

    def pairs(self) -> Iterator[Any]:
        """Every QuantizeLinear and DequantizeLinear of codes (biases in int32 have a rule of their own)."""
        for node in self.nodes:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not self.is_bias(node):
                yield node

    def is_bias(self, node: Any) -> bool:
        codes = self.tensors.get(node.input[0])
        return codes is not None and codes.data_type == 6

    def is_weight(self, node: Any) -> bool:
        return node.op_type == "DequantizeLinear" and node.input[0] in self.tensors

    def dequantized(self, name: str) -> bool:
        maker = self.maker.get(name)
        return maker is not None and maker.op_type == "DequantizeLinear"


Rule = Callable[[_Graph], Iterator[Finding]]


def _zero_points(graph: _Graph) -> Iterator[Finding]:
    for node in graph.pairs():
        zero_point = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if zero_point is not None and np.any(zero_point.astype(np.float32) != 0):
            yield _error("zero point 0", node, "the importer refuses any other; use symmetric grids")


def _types(graph: _Graph) -> Iterator[Finding]:
    for node in graph.pairs():
        kind = (
            graph.tensors[node.input[2]].data_type
            if len(node.input) > 2 and node.input[2] in graph.tensors
            else _INT8
        )
        if kind == _UINT8:
            yield _error("signed codes", node, "uint8 is read as int8: codes above 127 saturate")
        elif kind not in (_INT8, _INT4, _FLOAT8):
            yield _error("types", node, "only int8, int4 and float8 e4m3 are read")
        elif kind == _INT4 and not graph.is_weight(node):
            yield _error("types", node, "int4 is for weights alone")


def _int4_shape(graph: _Graph) -> Iterator[Finding]:
    for node in graph.pairs():
        tensor = graph.tensors.get(node.input[0])
        if tensor is not None and tensor.data_type == _INT4 and tensor.dims and tensor.dims[-1] % 2:
            yield _error("int4 shape", node, "the last dimension of an int4 weight must be even")


def _constant_scales(graph: _Graph) -> Iterator[Finding]:
    for node in graph.pairs():
        scale = graph.array(node.input[1])
        if scale is None:
            yield _error("constant scale", node, "the scale is computed; it must be a constant")
        elif np.any(scale <= 0):
            yield _error("positive scale", node, "a scale is not positive")


def _activations_per_tensor(graph: _Graph) -> Iterator[Finding]:
    for node in graph.pairs():
        scale = graph.array(node.input[1])
        if scale is not None and scale.size > 1 and not graph.is_weight(node):
            yield _error(
                "activations per tensor",
                node,
                f"{scale.size} scales on an activation; weights alone may have several",
            )


def _weight_axis(graph: _Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type not in _WEIGHTED or len(node.input) < 2:
            continue
        maker = graph.maker.get(node.input[1])
        if maker is None or not graph.is_weight(maker):
            continue
        scale = graph.array(maker.input[1])
        settings = {attribute.name: attribute.i for attribute in maker.attribute}
        if scale is None or scale.ndim != 1 or settings.get("block_size"):
            if scale is not None and scale.ndim == 0:
                yield _advice(
                    "weights per channel",
                    maker,
                    "one scale for the whole weight; one per output channel is as fast and closer",
                )
            continue
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        wanted = _OUTPUT_AXIS.get(node.op_type, 0 if transposed else 1)
        if settings.get("axis", 1) != wanted:
            yield _error(
                "weights per output channel",
                maker,
                f"scales lie along axis {settings.get('axis', 1)}, not {wanted}",
            )


def _no_integer_operators(graph: _Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type in _UNSUPPORTED:
            yield _error("operators", node, f"{node.op_type} is not imported; write it with Q/DQ")


def _float_biases(graph: _Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and graph.is_bias(node):
            yield _error("float biases", node, "an int32 bias is not imported; leave biases in float")


def _opset(graph: _Graph) -> Iterator[Finding]:
    for entry in graph.proto.opset_import:
        if entry.domain in ("", "ai.onnx") and not 9 <= entry.version <= HIGHEST_OPSET:
            yield Finding(
                rule="opset",
                level="error",
                node="model",
                text=f"opset {entry.version} is outside 9 to {HIGHEST_OPSET}",
            )
        elif entry.domain in ("", "ai.onnx") and entry.version > 20:
            yield Finding(
                rule="opset",
                level="advice",
                node="model",
                text=f"opset {entry.version} needs TensorRT 10.1 or later",
            )


def _inputs_of_weighted(graph: _Graph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type in _WEIGHTED and len(node.input) > 1:
            first, second = graph.dequantized(node.input[0]), graph.dequantized(node.input[1])
            if first != second:
                missing = "input" if second else "weight"
                yield _advice("both inputs", node, f"its {missing} is in float, so it runs in float")


def _residual_adds(graph: _Graph) -> Iterator[Finding]:
    """An add of a convolution's result and a skip branch fuses into the convolution if only the skip is quantized."""
    for node in graph.nodes:
        if node.op_type != "Add" or len(node.input) != 2:
            continue
        behind_conv = [_comes_from_conv(graph, name) for name in node.input]
        if not any(behind_conv):
            continue
        quantized = [graph.dequantized(name) for name in node.input]
        for at, other in ((0, 1), (1, 0)):
            if behind_conv[at] and quantized[at] and (quantized[other] or behind_conv[other]):
                yield _advice(
                    "residual add",
                    node,
                    "the convolution's own branch is quantized, which keeps the add from fusing into it",
                )
                break
        else:
            if not any(quantized):
                yield _advice(
                    "residual add", node, "the skip branch is in float; quantized, it would be read as int8"
                )


def _comes_from_conv(graph: _Graph, name: str) -> bool:
    maker = graph.maker.get(name)
    while maker is not None and maker.op_type in ("DequantizeLinear", "QuantizeLinear", "Clip"):
        maker = graph.maker.get(maker.input[0])
    return maker is not None and maker.op_type == "Conv"


RULES: tuple[Rule, ...] = (
    _zero_points,
    _types,
    _int4_shape,
    _constant_scales,
    _activations_per_tensor,
    _weight_axis,
    _no_integer_operators,
    _float_biases,
    _opset,
    _inputs_of_weighted,
    _residual_adds,
)


def check_tensorrt(path: str | Path) -> tuple[Finding, ...]:
    """Every place in a file that TensorRT would refuse, read otherwise or not run on integers."""
    graph = _Graph(require("onnx").load(str(path), load_external_data=False), Path(path).parent)
    return tuple(finding for rule in RULES for finding in rule(graph))


def _error(rule: str, node: Any, text: str) -> Finding:
    return Finding(rule=rule, level="error", node=node.name, text=text)


def _advice(rule: str, node: Any, text: str) -> Finding:
    return Finding(rule=rule, level="advice", node=node.name, text=text)
