"""Graph to ONNX by running it once under TorchScript's tracer: it takes seconds, ``torch.export`` tens of seconds.

The weights stay outside the translated file (they are its inputs until ``attach``), so their size does not
matter and none of them is copied.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.marker import DOMAIN, OP_TYPE, quantizers_of
from sparsebit.export.translate.request import TranslationRequest, quietly
from sparsebit.export.translate.spellings import Spelled
from sparsebit.runtime.packages import require

HIGHEST_OPSET = 20  # that this exporter writes; later ones only allow more types
_registered = False


def translate(request: TranslationRequest, axes: AxisNames) -> tuple[Any, dict[str, Tensor]]:
    """An onnx ModelProto whose weights are inputs of it, and those weights by name."""
    onnx = require("onnx")
    _register()
    file: Any = io.BytesIO()
    state = {
        **dict(request.flat.named_parameters(remove_duplicate=False)),
        **dict(request.flat.named_buffers(remove_duplicate=False)),
    }
    with quietly(), torch.no_grad(), Spelled():
        torch.onnx.export(
            request.flat,
            tuple(request.inputs),
            file,
            dynamo=False,
            opset_version=min(request.opset, HIGHEST_OPSET),
            input_names=list(request.names),
            output_names=list(request.outputs),
            dynamic_axes={
                name: dict(found) for name, found in axes.items() if found and name in request.names
            }
            or None,
            export_params=False,
            do_constant_folding=False,
            keep_initializers_as_inputs=True,
            custom_opsets={DOMAIN: 1} if quantizers_of(request.flat) else None,
        )
    proto = onnx.load_from_string(file.getvalue())
    weights = {}
    for value in proto.graph.input:
        if value.name not in request.names:
            weights[value.name] = state[value.name].detach()
    return proto, weights


def _register() -> None:
    """Teach the exporter our marker, once."""
    global _registered
    if _registered:
        return
    helper: Any = torch.onnx.symbolic_helper

    def symbolic(g: Any, x: Any, key: str) -> Any:
        return g.op(f"{DOMAIN}::{OP_TYPE}", x, key_s=key).setType(x.type())

    register: Any = vars(torch.onnx)["register_custom_op_symbolic"]
    register(f"{DOMAIN}::mark", helper.parse_args("v", "s")(symbolic), 9)
    _registered = True
