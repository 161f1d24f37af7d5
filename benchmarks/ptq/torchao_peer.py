"""torchao's pt2e flow for x86: histogram observers on activations, per-channel weights, its default config."""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from benchmarks.ptq.layers import record
from benchmarks.ptq.method import Args, Method, Missing

INSTALL = (
    "pip install --no-deps --target FOLDER torchao==0.18.0, then add FOLDER to PYTHONPATH "
    "(--no-deps and a folder of its own, so that torch stays as it is)"
)


class TorchAO(Method):
    """Export, prepare_pt2e, forwards, convert_pt2e. What converts is a copy, so that calibrating can be repeated."""

    name = "torchao pt2e x86"

    def __init__(self) -> None:
        if importlib.util.find_spec("torchao") is None:
            raise Missing(f"torchao is not installed: {INSTALL}")

    def prepare(self, model: nn.Module, example: Args) -> None:
        logging.getLogger("torchao").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
            from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

            exported = torch.export.export(model, example, dynamic_shapes=dynamic_shapes(example)).module()
            quantizer = x86.X86InductorQuantizer()
            quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
            self.prepared = prepare_pt2e(exported, quantizer)

    def calibrate(self, batches: Sequence[Args]) -> None:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            observed = copy.deepcopy(self.prepared)
            for args in batches:
                observed(*args)
            self.converted: GraphModule = convert_pt2e(observed)

    def predict(self, *args: Any) -> Any:
        return self.converted(*args)

    def layers(self, args: Args) -> dict[str, Tensor]:
        return record(self.converted, args, _layer_name)


def dynamic_shapes(example: Args) -> tuple[dict[int, Any], ...]:
    """Any batch size, and for token ids any length."""
    return tuple(
        {axis: torch.export.Dim.AUTO for axis in range(1 if tensor.is_floating_point() else tensor.dim())}
        for tensor in example
    )


def _layer_name(node: Node) -> str | None:
    target = str(node.target)
    if node.op != "call_function" or not target.startswith(("aten.conv", "aten.linear")):
        return None
    stack = node.meta.get("nn_module_stack")
    return str(list(stack.values())[-1][0]) if stack else None
