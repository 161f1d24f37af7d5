"""Graph to ONNX by running it once under TorchScript's tracer: seconds where ``torch.export`` takes tens of them.

The weights stay outside the translated file (they are its inputs until ``attach``), so their size does not
matter and none of them is copied.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sparsebit.export.translate.axes import AxisNames
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import DOMAIN, OP_TYPE, quantizers_of
from sparsebit.export.translate.spellings import Spelled
from sparsebit.runtime.packages import require

HIGHEST_OPSET = 20  # that this exporter writes; later ones only allow more types
_registered = False


def translate(
    flat: FlatGraph,
    inputs: Sequence[Tensor],
    names: Sequence[str],
    outputs: Sequence[str],
    axes: AxisNames,
    opset: int,
) -> tuple[Any, dict[str, Tensor]]:
    """An onnx ModelProto whose weights are inputs, and those weights by name."""
    onnx = require("onnx")
    _register()
    file: Any = io.BytesIO()
    state = {
        **dict(flat.named_parameters(remove_duplicate=False)),
        **dict(flat.named_buffers(remove_duplicate=False)),
    }
    with _quietly(), torch.no_grad(), Spelled():
        torch.onnx.export(
            flat,
            tuple(inputs),
            file,
            dynamo=False,
            opset_version=min(opset, HIGHEST_OPSET),
            input_names=list(names),
            output_names=list(outputs),
            dynamic_axes={name: dict(found) for name, found in axes.items() if found and name in names}
            or None,
            export_params=False,
            do_constant_folding=False,
            keep_initializers_as_inputs=True,
            custom_opsets={DOMAIN: 1} if quantizers_of(flat) else None,
        )
    proto = onnx.load_from_string(file.getvalue())
    weights = {}
    for value in proto.graph.input:
        if value.name not in names:
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


@contextmanager
def _quietly() -> Iterator[None]:
    """Tracers warn about every Python number they meet; whether the result is right is tested afterwards."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    printer = getattr(
        torch._C, "_jit_onnx_log", None
    )  # prints whole graphs, and its switch does not switch it off
    try:
        if printer is not None:
            torch._C._jit_onnx_log = _say_nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if printer is not None:
            torch._C._jit_onnx_log = printer


def _say_nothing(*_: object) -> None:
    pass
