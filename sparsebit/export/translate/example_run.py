"""Run the example once before it is translated: what every quantizer does, and how large results are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import Markers
from sparsebit.graph.run import run_graph
from sparsebit.quantization.quantizers import Quantizer


def run_example(flat: FlatGraph, inputs: Sequence[Tensor], markers: Markers) -> tuple[Tensor, ...]:
    """The outputs, with the largest number each quantized weight makes written down in ``markers``."""
    found = markers.largest

    def note(node: Node, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            for name in _weights(flat, node):
                found[name] = max(found.get(name, 0.0), float(value.detach().abs().max()))

    results = run_graph(flat.body, [x.clone() for x in inputs], watch=note)
    return tuple(value for value in results if isinstance(value, Tensor))


def _weights(flat: FlatGraph, node: Node) -> list[str]:
    """The quantized weights that a node holds or reads, by name."""
    inner: list[Any] = []
    if node.op == "call_module":
        leaf = flat.body.get_submodule(str(node.target))
        inner = [] if isinstance(leaf, Quantizer) else list(leaf.modules())
    elif node.op == "call_function":
        sources = [source for source in node.all_input_nodes if source.op == "call_module"]
        inner = [flat.body.get_submodule(str(source.target)) for source in sources]
    return [module.name for module in inner if isinstance(module, Quantizer) and module.side == "W"]
