"""Which operators were planned on integers, which of them ONNX Runtime runs on integers, and which run in float."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sparsebit.export.forms.editor import MOVES, WEIGHTED, attribute, dequantized, is_float8, readers
from sparsebit.export.proof.report import IntegerOp

Kernels = Mapping[str, frozenset[str]]
_MOVES = MOVES | {"Flatten", "MaxPool", "Gather", "Slice"}
_SIZES = frozenset({"Shape", "Size", "Cast"})  # read no numbers, or only convert them
_INTEGER_KERNELS = frozenset(
    {"QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger", "MatMulInteger"}
)
_INTEGER_RESULTS = frozenset(
    {
        "Shape",
        "Size",
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "ArgMax",
        "ArgMin",
        "NonZero",
        "IsNaN",
        "IsInf",
    }
    | {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"}
)
_FLOAT_TYPES = (1, 10, 11, 16)  # float, float16, double and bfloat16, as ONNX numbers them
_SUFFIX = re.compile(r"(_token_\d+|_nhwc|_quant|/MatMulAddFusion|/MatMulScaleFusion/?)+$")
_NO_FLOAT8 = "8-bit floats have no kernel on a CPU; they are unpacked and computed on in float"


def integer_ops(exported: Any, optimized: Any, kernels: Kernels) -> tuple[IntegerOp, ...]:
    """Every operator of the file whose inputs are all quantized, and how the runtime executes it.

    ``exported`` and ``optimized`` are ``onnx_ir`` models; ``kernels`` is the target's table of integer kernels.
    """
    made, found = _by_name(optimized), []
    for node in exported.graph:
        if node.op_type in WEIGHTED and any(
            is_float8(value, behind=_MOVES | {"Sum"}) for value in node.inputs[:2]
        ):
            kind, on_integers, why = node.op_type, False, _NO_FLOAT8
        elif not _planned(node, kernels):
            continue
        else:
            became = made.get(node.name) or _by_output(optimized, node)
            kind = became.op_type if became is not None else "folded away"
            on_integers = became is None or kind in kernels[node.op_type]
            if on_integers and became is not None and kind in ("Concat", "Resize"):
                on_integers = _reads_integers(became)
            why = "" if on_integers else _why(node, kernels)
        found.append(
            IntegerOp(name=node.name, op=node.op_type, runs_as=kind, on_integers=on_integers, why=why)
        )
    return tuple(found)


def float_ops(optimized: Any) -> Mapping[str, int]:
    """How often each operator computes in float in the runtime's optimized graph, the most frequent first.

    Arithmetic on sizes is not counted, nor are operators that only move or convert numbers.
    """
    floats = {value.name for value in optimized.graph.inputs if _is_float(value)}
    found: Counter[str] = Counter()
    for node in optimized.graph:
        kind = node.op_type
        integers = kind.startswith("QLinear") or kind in _INTEGER_KERNELS
        given = node.inputs[:1] if kind in _MOVES | {"Resize"} else node.inputs
        on_floats = not integers and any(v is not None and (v.name in floats or _is_float(v)) for v in given)
        if on_floats and kind not in _MOVES | _SIZES | {"QuantizeLinear", "DequantizeLinear", "Constant"}:
            found[kind] += 1
        if _gives_floats(node, on_floats):
            floats.update(value.name for value in node.outputs)
    return dict(found.most_common())


def _gives_floats(node: Any, on_floats: bool) -> bool:
    kind = node.op_type
    if kind == "Cast":
        return attribute(node, "to", 0) in _FLOAT_TYPES
    if kind == "QGemm":  # without a scale for its result, that is float
        return len(node.inputs) < 8
    if kind in ("DequantizeLinear", "ConstantOfShape") or kind in _INTEGER_KERNELS:
        return kind not in ("ConvInteger", "MatMulInteger", "ConstantOfShape")
    return on_floats and kind not in _INTEGER_RESULTS


def _is_float(value: Any) -> bool:
    return value.dtype is not None and bool(value.dtype.is_floating_point())


def _source(value: Any) -> Any:
    """The DequantizeLinear from which a value comes through operators that move numbers, or None."""
    return dequantized(value, behind=_MOVES)


def _is_weight(dequantize: Any) -> bool:
    if dequantize is None:
        return False
    source = dequantize.inputs[0]
    while source.producer() is not None and source.producer().op_type in ("Cast", "Mul"):
        source = source.producer().inputs[0]  # 4-bit codes on their way to an 8-bit kernel
    return source.const_value is not None


def _ends(node: Any) -> list[Any]:
    """The readers of a result, after activations and operators that move numbers."""
    found, waiting = [], [node.outputs[0]]
    while waiting:
        for reader in readers(waiting.pop()):
            if reader.op_type in (*_MOVES, "Relu", "Clip"):
                waiting.append(reader.outputs[0])
            else:
                found.append(reader)
    return found


def _planned(node: Any, kernels: Kernels) -> bool:
    if node.op_type not in kernels or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in WEIGHTED:
        first, second = _source(node.inputs[0]), _source(node.inputs[1])
        if first is None:  # a weight alone: blocks of it are for MatMulNBits
            return (
                _is_weight(second) and node.op_type == "MatMul" and bool(attribute(second, "block_size", 0))
            )
        return second is not None and not _is_weight(first)
    inputs = node.inputs[:1] if node.op_type == "Resize" else [value for value in node.inputs if value]
    sources = [_source(value) for value in inputs]
    if not sources or any(source is None or _is_weight(source) for source in sources):
        return False
    return any(reader.op_type == "QuantizeLinear" for reader in _ends(node))


def _by_name(optimized: Any) -> Mapping[str, Any]:
    """Optimized nodes by their original names: fusions append to the name of the node they keep."""
    found: dict[str, Any] = {}
    for node in optimized.graph:
        name = node.name.removeprefix("fused ")
        for candidate in (name, _SUFFIX.sub("", name)):
            known = found.get(candidate)
            if known is None or known.op_type in ("QuantizeLinear", "DequantizeLinear", "Transpose"):
                found[candidate] = node
    return found


def _by_output(optimized: Any, node: Any) -> Any:
    """The optimized node that computes the value of this one, or its quantized values."""
    ends = [reader for reader in _ends(node) if reader.op_type == "QuantizeLinear"]
    names = {value.name for maker in (node, *ends) for value in maker.outputs}
    for candidate in optimized.graph:
        made = {value.name for value in candidate.outputs}
        if names & made and candidate.op_type != "QuantizeLinear":
            return candidate
    return None


def _reads_integers(node: Any) -> bool:
    """Whether a node of the optimized graph reads integers although its operator has no integer form."""
    value = node.inputs[0]
    maker = value.producer()
    if maker is None:
        return value.dtype is None or value.dtype.name != "FLOAT"
    return bool(maker.op_type != "DequantizeLinear")


def _why(node: Any, kernels: Kernels) -> str:
    """The rule of ONNX Runtime's fusions that an operator breaks, as far as the file shows it."""
    if not kernels[node.op_type]:
        return f"ONNX Runtime has no integer kernel for {node.op_type}"
    sources = [source for value in node.inputs[:2] if (source := _source(value)) is not None]
    types = {source.inputs[2].dtype.name for source in sources}
    if types & {"INT4", "UINT4", "INT2", "UINT2"}:
        return "4-bit weights are unpacked and computed in float, except in blocks of a plain MatMul"
    if types - {"INT8", "UINT8"}:
        return "only 8-bit values have integer kernels"
    if any(attribute(source, "block_size", 0) for source in sources):
        return "a scale per block has an integer kernel only for MatMul with a float input"
    ends = _ends(node)
    behind = [reader for reader in ends if reader.op_type == "QuantizeLinear"]
    if node.op_type not in ("Gemm", "MatMul"):
        if not behind:
            return "its result is not quantized, and the kernel returns quantized values"
        if len(behind) < len(ends) or node.outputs[0].is_graph_output():
            return "its result is also read in float"
        if len({tuple(value.name for value in reader.inputs[1:3]) for reader in behind}) > 1:
            return "its result is quantized on two grids"
    direct = [reader for reader in readers(node.outputs[0]) if reader.op_type in ("Relu", "Clip")]
    if direct:
        return f"a {direct[0].op_type} is between it and its QuantizeLinear"
    if node.op_type in ("Gemm", "MatMul"):
        return "its bias is in float, or an operator between it and its quantized input does not pass integers on"
    return "ONNX Runtime did not fuse it"
