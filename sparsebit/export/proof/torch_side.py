"""The torch side of the comparison: the codes of every quantized tensor, and the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.batches import device_of
from sparsebit.export.translate.flat_graph import FlatGraph, example_leaves
from sparsebit.export.translate.marker import code_tensor, quantizers_of, tensor_label, unrounded_codes
from sparsebit.export.translate.spellings import TIES, Spelled
from sparsebit.export.translate.undisturbed import undisturbed
from sparsebit.graph.run import flatten_call
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.switches import substituted


@dataclass
class TorchRun:
    """One run of the fake-quantized model. Tensors by their names in the file, on the CPU."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    codes: dict[str, Tensor] = field(default_factory=dict)  # of activations
    unrounded: dict[str, Tensor] = field(default_factory=dict)  # the same before rounding and clipping
    snapped: dict[str, Tensor] = field(default_factory=dict)  # the numbers they represent, for 8-bit floats
    weights: dict[str, Tensor] = field(default_factory=dict)  # weights, fake-quantized

    def note(self, quantizer: Quantizer, x: Tensor) -> Tensor:
        """Record what one quantizer does."""
        result = quantizer.snap(x)
        if quantizer.side == "W":
            self.weights.setdefault(quantizer.name, result.detach().cpu())
        else:
            call = 0
            while (label := tensor_label(quantizer.name, call)) in self.codes:
                call += 1
            self.codes[label] = code_tensor(quantizer, x).detach().cpu()
            if quantizer.spec.dtype == "int":
                self.unrounded[label] = unrounded_codes(quantizer, x).detach().cpu()
            else:
                self.snapped[label] = result.detach().cpu()
        return result


def run_torch(
    gm: GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, quantized: bool = True
) -> TorchRun:
    """Run a graph in evaluation mode with quantizers on and record everything; the model is not changed."""
    run = TorchRun()
    with undisturbed(gm, quantized=quantized), torch.no_grad():
        flat = FlatGraph(gm)
        inputs = example_leaves(flat, flatten_call(gm, tuple(args), dict(kwargs or {})), device_of(gm))
        static = [quantizer for quantizer in quantizers_of(flat) if quantizer.layout.kind != "token"]
        with substituted(static, run.note), Spelled(TIES):
            results = flat(*(x.clone() for x in inputs))
    run.inputs = [x.cpu() for x in inputs]
    run.outputs = [x.detach().cpu() for x in results]
    return run
