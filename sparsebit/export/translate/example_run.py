"""Run the example once before it is translated: what every quantizer does, and how large results are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import Markers
from sparsebit.quantization.quantizers import Quantizer


def run_example(flat: FlatGraph, inputs: Sequence[Tensor], markers: Markers) -> tuple[Tensor, ...]:
    """The outputs, with the largest number each quantized weight makes written down in ``markers``."""
    results = _Largest(flat.body, markers.largest).run(*(x.clone() for x in inputs))
    return tuple(value for value in results if isinstance(value, Tensor))


class _Largest(fx.Interpreter):
    def __init__(self, body: fx.GraphModule, found: dict[str, float]) -> None:
        super().__init__(body)
        self.found = found

    def run_node(self, n: fx.Node) -> Any:
        """One node; if it holds or reads a quantized weight, its largest number is kept."""
        value = super().run_node(n)
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            for name in self._weights(n):
                self.found[name] = max(self.found.get(name, 0.0), float(value.detach().abs().max()))
        return value

    def _weights(self, node: fx.Node) -> list[str]:
        if node.op == "call_module":
            leaf = self.module.get_submodule(str(node.target))
            inner = [] if isinstance(leaf, Quantizer) else list(leaf.modules())
        elif node.op == "call_function":
            inner = [
                self.module.get_submodule(str(source.target))
                for source in node.all_input_nodes
                if source.op == "call_module"
            ]
        else:
            return []
        return [module.name for module in inner if isinstance(module, Quantizer) and module.side == "W"]
