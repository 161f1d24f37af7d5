"""This library, with one observer for the activations and one target to place quantizers for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from benchmarks.ptq.layers import layer_name, record
from benchmarks.ptq.method import Args, Method
from sparsebit.quantization import QuantModel, parse_qconfig


class Sparsebit(Method):
    """Unsigned activations, and weights per channel with their full range, placed as the target asks."""

    def __init__(self, observer: str, target: str = "virtual", overrides: Sequence[str] = ()) -> None:
        self.name = f"sparsebit {observer}, {target}"
        settings = ["DEVICE=cpu", f"BACKEND={target}", f"A.OBSERVER.TYPE={observer}", *overrides]
        self.config = parse_qconfig("int8_onnxruntime", settings)

    def prepare(self, model: nn.Module, example: Args) -> None:
        self.quantized = QuantModel(model, self.config, example_inputs=example)

    def calibrate(self, batches: Sequence[Args]) -> None:
        self.quantized.calibrate(batches, progress=False)
        self.quantized.set_quant(w_quant=True, a_quant=True)

    def predict(self, *args: Any) -> Any:
        return self.quantized(*args)

    def layers(self, args: Args) -> dict[str, Tensor]:
        gm = self.quantized.model
        return record(gm, args, lambda node: layer_name(gm, node))
