"""Graph to ONNX through ``torch.export``: slower, but it follows writes in place and knows more operators."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import DOMAIN, OP_TYPE
from sparsebit.export.translate.spellings import Spelled
from sparsebit.runtime.packages import require

LOWEST_OPSET = 18  # what its operators are written in


def translate(
    flat: FlatGraph,
    inputs: Sequence[Tensor],
    names: Sequence[str],
    outputs: Sequence[str],
    axes: AxisNames,
    opset: int,
) -> Any:
    """An ``onnx_ir`` model that refers to the model's own weights."""
    shapes = tuple({axis: torch.export.Dim.AUTO for axis in axes.get(name, {})} or None for name in names)
    config: Any = torch.fx.experimental._config
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad(), config.patch(backed_size_oblivious=True):
            warnings.simplefilter("ignore")
            with Spelled():
                program = torch.export.export(
                    flat, tuple(inputs), dynamic_shapes=(shapes,) if any(shapes) else None, strict=False
                )
            done = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=max(opset, LOWEST_OPSET),
                input_names=list(names),
                output_names=list(outputs),
                custom_translation_table={torch.ops.sparsebit.mark.default: _marker()},
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    assert done is not None
    return done.model


def _marker() -> Any:
    """The function that translates our marker; the exporter only takes operators with a schema."""
    onnx, values = require("onnx"), require("onnxscript.values")
    schema = onnx.defs.OpSchema(
        OP_TYPE,
        DOMAIN,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[
            ("T", ["tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)"], "")
        ],
        attributes=[onnx.defs.OpSchema.Attribute("key", onnx.defs.OpSchema.AttrType.STRING, "")],
    )
    op = values.Op(values.Opset(DOMAIN, 1), OP_TYPE, schema)

    def translate_mark(x: Any, key: str) -> Any:
        return op(x, key=key)

    return translate_mark
