"""Which operators were planned on integers, and which of them ONNX Runtime runs on integers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparsebit.export.forms.lower import SCALED
from sparsebit.export.proof.report import IntegerOp
from sparsebit.runtime.packages import require

Kernels = Mapping[str, frozenset[str]]
_WEIGHTED = ("Conv", "Gemm", "MatMul", "ConvTranspose")
_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "MaxPool", "Gather", "Slice")
_SUFFIX = re.compile(r"(_token_\d+|_nhwc|_quant|/MatMulAddFusion|/MatMulScaleFusion/?)+$")
_EIGHT_BITS = {2, 3}  # UINT8, INT8
_NO_FLOAT8 = "8-bit floats have no kernel on a CPU; they are unpacked and computed on in float"
_FOUR_BITS = {21, 22, 25, 26}


class _File:
    """The exported graph, with its edges at hand."""

    def __init__(self, proto: Any) -> None:
        graph = proto.graph
        self.nodes = list(graph.node)
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in graph.output}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}

    def source(self, name: str) -> Any:
        """The DequantizeLinear a value comes from through moves, or None."""
        node = self.producer.get(name)
        while node is not None and node.op_type in _MOVES:
            node = self.producer.get(node.input[0])
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def is_float8(self, name: str) -> bool:
        """Whether a value is unpacked from 8-bit floats."""
        node = self.producer.get(name)
        while node is not None and node.op_type in (*_MOVES, "Sum") and len(node.input) > 0:
            node = self.producer.get(node.input[0])
        return node is not None and node.op_type == "Mul" and node.name.endswith(f"/{SCALED}")

    def is_weight(self, dequantize: Any) -> bool:
        if dequantize is None:
            return False
        source = dequantize.input[0]
        while (maker := self.producer.get(source)) is not None and maker.op_type in ("Cast", "Mul"):
            source = maker.input[0]  # 4-bit codes on their way to an 8-bit kernel
        return source in self.tensors

    def code_type(self, dequantize: Any) -> int:
        return int(self.tensors[dequantize.input[2]].data_type)

    def ends(self, node: Any) -> list[Any]:
        """What reads a result, past activations and moves."""
        found, waiting = [], [node.output[0]]
        while waiting:
            for reader in self.readers.get(waiting.pop(), []):
                if reader.op_type in (*_MOVES, "Relu", "Clip"):
                    waiting.append(reader.output[0])
                else:
                    found.append(reader)
        return found


def integer_ops(exported: Any, optimized: Any, kernels: Kernels) -> tuple[IntegerOp, ...]:
    """Every operator of the file whose inputs are all quantized, and what it became.

    ``exported`` and ``optimized`` are ModelProtos; ``kernels`` is the target's table of integer kernels.
    """
    file = _File(exported)
    made = _by_name(optimized)
    found = []
    for node in file.nodes:
        float8 = node.op_type in _WEIGHTED and any(file.is_float8(name) for name in node.input[:2])
        if not float8 and not _planned(file, node, kernels):
            continue
        became = made.get(node.name) or _by_output(optimized, file, node)
        kind = became.op_type if became is not None else "folded away"
        if float8:
            found.append(
                IntegerOp(
                    name=node.name, op=node.op_type, runs_as=node.op_type, on_integers=False, why=_NO_FLOAT8
                )
            )
            continue
        on_integers = became is None or kind in kernels[node.op_type]
        if on_integers and became is not None and kind in ("Concat", "Resize"):
            on_integers = _integer_typed(optimized, became)
        why = "" if on_integers else _why(file, node, kernels)
        found.append(
            IntegerOp(name=node.name, op=node.op_type, runs_as=kind, on_integers=on_integers, why=why)
        )
    return tuple(found)


def _planned(file: _File, node: Any, kernels: Kernels) -> bool:
    if node.op_type not in kernels or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _WEIGHTED:
        first, second = file.source(node.input[0]), file.source(node.input[1])
        if first is None:  # a weight alone: blocks of it are for MatMulNBits
            return file.is_weight(second) and node.op_type == "MatMul" and _blocked(second)
        return second is not None and not file.is_weight(first)
    inputs = node.input[:1] if node.op_type == "Resize" else [name for name in node.input if name]
    sources = [file.source(name) for name in inputs]
    if not sources or any(source is None or file.is_weight(source) for source in sources):
        return False
    return any(reader.op_type == "QuantizeLinear" for reader in file.ends(node))


def _blocked(dequantize: Any) -> bool:
    return any(attribute.name == "block_size" and attribute.i for attribute in dequantize.attribute)


def _by_name(optimized: Any) -> Mapping[str, Any]:
    """Optimized nodes by the names they had: fusions append to the name of the node they keep."""
    found: dict[str, Any] = {}
    for node in optimized.graph.node:
        name = node.name.removeprefix("fused ")
        for candidate in (name, _SUFFIX.sub("", name)):
            known = found.get(candidate)
            if known is None or known.op_type in ("QuantizeLinear", "DequantizeLinear", "Transpose"):
                found[candidate] = node
    return found


def _by_output(optimized: Any, file: _File, node: Any) -> Any:
    """The optimized node that makes the value this one made, or the codes right behind it."""
    names = {node.output[0]}
    names |= {
        name for reader in file.ends(node) if reader.op_type == "QuantizeLinear" for name in reader.output
    }
    for candidate in optimized.graph.node:
        if names & set(candidate.output) and candidate.op_type != "QuantizeLinear":
            return candidate
    return None


def _integer_typed(optimized: Any, node: Any) -> bool:
    """Whether a node that has no integer form of its own reads integers."""
    onnx = require("onnx")
    makers = {name: other for other in optimized.graph.node for name in other.output}
    floats = {
        value.name
        for value in optimized.graph.input
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    maker = makers.get(node.input[0])
    return node.input[0] not in floats and (maker is None or maker.op_type != "DequantizeLinear")


def _why(file: _File, node: Any, kernels: Kernels) -> str:
    """The rule of ONNX Runtime's fusions that an operator breaks, as far as the file shows it."""
    if not kernels[node.op_type]:
        return f"ONNX Runtime has no integer kernel for {node.op_type}"
    sources = [source for name in node.input[:2] if (source := file.source(name)) is not None]
    types = {file.code_type(source) for source in sources}
    if types & _FOUR_BITS:
        return "4-bit weights are unpacked and computed in float, except in blocks of a plain MatMul"
    if types - _EIGHT_BITS:
        return "only 8-bit codes have integer kernels"
    if any(_blocked(source) for source in sources):
        return "a scale per block has an integer kernel only for MatMul with a float input"
    ends = file.ends(node)
    behind = [reader for reader in ends if reader.op_type == "QuantizeLinear"]
    if node.op_type not in ("Gemm", "MatMul"):
        if not behind:
            return "its result is not quantized; the kernel ends in codes"
        if len(behind) < len(ends) or node.output[0] in file.outputs:
            return "its result is also read in float"
        if len({tuple(reader.input[1:3]) for reader in behind}) > 1:
            return "its result is quantized on two grids"
    direct = [reader for reader in file.readers.get(node.output[0], []) if reader.op_type in ("Relu", "Clip")]
    if direct:
        return f"a {direct[0].op_type} stands between it and its QuantizeLinear"
    if node.op_type in ("Gemm", "MatMul"):
        return "its bias is in float, or something between its input's codes and it is not passed by integers"
    return "ONNX Runtime did not fuse it"
