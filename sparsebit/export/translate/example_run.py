"""Run the example once before translation, to record what every quantizer does and how large results are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import Markers
from sparsebit.graph.run import run_graph
from sparsebit.quantization.modules.weights import weights_read


def run_example(flat: FlatGraph, inputs: Sequence[Tensor], markers: Markers) -> tuple[Tensor, ...]:
    """The outputs; the largest result of each quantized weight is recorded in ``markers``."""
    found = markers.largest

    def note(node: Node, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            for _, quantizer in weights_read(flat.body, node):
                found[quantizer.name] = max(found.get(quantizer.name, 0.0), float(value.detach().abs().max()))

    results = run_graph(flat.body, [x.clone() for x in inputs], watch=note)
    return tuple(value for value in results if isinstance(value, Tensor))
