"""What the file says about itself: the quantization of every tensor, as JSON that checkers and runtimes let pass."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sparsebit.export.forms.container import container_of
from sparsebit.export.translate.marker import Markers

KEY = "sparsebit.quant"
FORMAT = 1


def describe(
    model: Any, markers: Markers, names: Iterable[str], *, target: str, unsigned: bool, opset: int
) -> None:
    """Write ``sparsebit.quant`` into the model's metadata, keyed by tensor name."""
    tensors = {}
    for name in sorted(set(names)):
        tensor = markers.tensors[name]
        container = container_of(tensor, unsigned_activations=unsigned, opset=opset)
        tensors[name] = {
            "side": tensor.side,
            "bits": tensor.bits,
            "format": "int" if tensor.grid.code.is_integer else tensor.grid.code.kind,
            "scheme": tensor.scheme,
            "type": container.kind.lower(),
            "range": [tensor.grid.code.low, tensor.grid.code.high],
            "shift": container.shift,
        }
    value = {"format": FORMAT, "target": target, "tensors": tensors, "dynamic": sorted(markers.dynamic)}
    model.metadata_props[KEY] = json.dumps(value, separators=(",", ":"))
