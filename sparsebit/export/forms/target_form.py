"""From a translated model with markers to the form that a target's kernels read."""

from __future__ import annotations

import json
from typing import Any

from sparsebit.export.forms.biases import float_bias, integer_bias
from sparsebit.export.forms.container import container_of
from sparsebit.export.forms.editor import PRODUCTS, WEIGHTED, Editor, Rewrite
from sparsebit.export.forms.fill_weights import fill_weight
from sparsebit.export.forms.fourth_channel import fourth_channel
from sparsebit.export.forms.gather_rows import gather_rows
from sparsebit.export.forms.hard_sigmoid import hard_sigmoid
from sparsebit.export.forms.keep_float import (
    keep_branch_float,
    keep_float8_product,
    keep_float8_relu,
    keep_float_weight,
    keep_softmax_float,
    keep_unsupported_grid_float,
    keep_vector_matmul_float,
)
from sparsebit.export.forms.lower import lower
from sparsebit.export.forms.matmul_layout import separate_weight_only, transpose_weight
from sparsebit.export.forms.rewrites import (
    clip_codes,
    drop_empty_pad,
    grids_before_concat,
    mean_as_pool,
    pad_into_conv,
    repeat_grid,
    size_from_codes,
    sum_before_norm,
)
from sparsebit.export.translate.marker import Markers
from sparsebit.runtime.packages import require
from sparsebit.targets import TARGETS

KEY, FORMAT = "sparsebit.quant", 1  # of the file's description of itself, and its version
Step = tuple[Rewrite, tuple[str, ...]]  # a rewrite and the operators it is offered
_MATMULS = ("Gemm", "MatMul")

EVERYWHERE: tuple[Step, ...] = (
    (transpose_weight, ("DequantizeLinear",)),
    (size_from_codes, ("Shape", "Size")),
)
ON_CPUS: tuple[Step, ...] = (
    (gather_rows, ("Gather",)),
    (drop_empty_pad, ("Pad",)),
    (pad_into_conv, ("Conv",)),
    (mean_as_pool, ("ReduceMean",)),
    (grids_before_concat, ("Concat",)),
    (repeat_grid, PRODUCTS),
    (clip_codes, ("QuantizeLinear",)),
    (keep_float_weight, ("Conv", "ConvTranspose", "Gemm")),
    (keep_softmax_float, ("Softmax",)),
    (keep_vector_matmul_float, ("MatMul",)),
    (keep_unsupported_grid_float, WEIGHTED),
    (keep_float8_product, WEIGHTED),
    (keep_float8_relu, ("Relu",)),
    (keep_branch_float, ("If", "Loop", "Scan")),
    (float_bias, ("Conv",)),
    (integer_bias, _MATMULS),
    (separate_weight_only, _MATMULS),
    (fill_weight, ("DequantizeLinear",)),
    (sum_before_norm, ("Add",)),
)
# For ONNX Runtime alone: the first step, and the last.
INTO_ADDITIONS: tuple[Step, ...] = ((hard_sigmoid, ("HardSigmoid",)),)
INTO_FOURS: tuple[Step, ...] = ((fourth_channel, ("Conv",)),)


def bring_into_form(
    model: Any, markers: Markers, *, target: str, opset: int, extra_info: bool, dynamic: bool
) -> tuple[list[str], dict[str, int]]:
    """Lower the markers of an ``onnx_ir`` model, and rewrite it for the target's kernels.

    Returns the names of the tensors that are now integers, and how often each rewrite was applied.
    """
    onnx, unsigned = require("onnx"), TARGETS[target].forms == "cpu"
    opset = max(opset, model.opset_imports.get("", opset))
    model.opset_imports[""] = opset
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    model.ir_version = max(needed, 8)
    editor = Editor(model, markers, dynamic=dynamic)
    lowered = lower(editor, unsigned_activations=unsigned, extra_info=extra_info)
    steps = (*EVERYWHERE, *(ON_CPUS if unsigned else ()))
    if unsigned and TARGETS[target].runtime == "onnxruntime":
        steps = (*INTO_ADDITIONS, *steps, *INTO_FOURS)
    rewrites = {rewrite.__name__: editor.apply(rewrite, *op_types) for rewrite, op_types in steps}
    if rewrites["size_from_codes"]:
        editor.graph.sort()  # values that depend on the size now come after the quantized values
    model.metadata_props[KEY] = _describe(markers, lowered, target, unsigned=unsigned, opset=opset)
    return lowered, rewrites


def _describe(markers: Markers, names: list[str], target: str, *, unsigned: bool, opset: int) -> str:
    """A description of the quantized tensors for the file, as JSON that checkers and runtimes ignore."""
    tensors = {}
    for name in sorted(names):
        tensor = markers.tensors[name]
        code = tensor.grid.code
        container = container_of(tensor, unsigned_activations=unsigned, opset=opset)
        tensors[name] = {
            "side": tensor.side,
            "bits": tensor.bits,
            "format": "int" if code.is_integer else code.kind,
            "scheme": tensor.scheme,
            "type": container.kind.lower(),
            "range": [code.low, code.high],
            "shift": container.shift,
        }
    value = {"format": FORMAT, "target": target, "tensors": tensors, "dynamic": sorted(markers.dynamic)}
    return json.dumps(value, separators=(",", ":"))
