"""Graph to ONNX through ``torch.export``: slower, but it follows writes in place and knows more operators."""

from __future__ import annotations

from typing import Any

import torch

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.marker import DOMAIN, OP_TYPE
from sparsebit.export.translate.request import TranslationRequest, quietly
from sparsebit.export.translate.spellings import Spelled
from sparsebit.runtime.packages import require

LOWEST_OPSET = 18  # the language of its operators


def translate(request: TranslationRequest, axes: AxisNames) -> Any:
    """An ``onnx_ir`` model that refers to the model's own weights."""
    shapes = tuple(
        {axis: torch.export.Dim.AUTO for axis in axes.get(name, {})} or None for name in request.names
    )
    config: Any = torch.fx.experimental._config
    with quietly(), torch.no_grad(), config.patch(backed_size_oblivious=True):
        with Spelled():
            program = torch.export.export(
                request.flat,
                tuple(request.inputs),
                dynamic_shapes=(shapes,) if any(shapes) else None,
                strict=False,
            )
        done = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=max(request.opset, LOWEST_OPSET),
            input_names=list(request.names),
            output_names=list(request.outputs),
            custom_translation_table={torch.ops.sparsebit.mark.default: _marker()},
            verbose=False,
        )
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
