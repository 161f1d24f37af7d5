"""The error of a quantized model, layer by layer: alone and accumulated, and what to keep in float."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparsebit.analysis.bits.layer_bits import FLOAT, with_layer_bits
from sparsebit.analysis.profiling.agreement import Agreement, decibels
from sparsebit.analysis.profiling.tensor_error import TensorError
from sparsebit.config import QConfig
from sparsebit.display import as_text, in_notebook
from sparsebit.storage.typed import to_plain

HARMLESS_DB = 30.0  # a layer above this is accurate enough
STANDS_OUT = 3.0  # times the noise of the median layer


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """The result of one operator that reads quantized tensors, compared with its float result."""

    name: str
    node: str
    op: str
    alone: Agreement
    """The error when only this operator is quantized."""
    together: Agreement
    """The accumulated error, with everything before it quantized as well."""
    weight: TensorError | None = None
    inputs: tuple[TensorError, ...] = ()

    @property
    def worst(self) -> TensorError | None:
        """The tensor of this layer with the largest error."""
        tensors = [*self.inputs, *([self.weight] if self.weight else [])]
        return min(tensors, key=lambda tensor: tensor.agreement.sqnr_db, default=None)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A layer that should stay in float, and the reason."""

    layer: str
    share: float
    """Its share of the noise of all layers, each quantized alone and relative to its signal."""
    sqnr_db: float
    because: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.because}"


@dataclass(frozen=True, kw_only=True)
class ErrorProfile:
    """Errors of every layer and tensor. Print it, or call ``to_dict()`` or ``keep_float()``."""

    layers: tuple[LayerError, ...]
    tensors: tuple[TensorError, ...]
    output: Agreement
    """All outputs of the model: quantized compared with float."""
    left_float: dict[str, str] = field(default_factory=dict)
    """Operators that compute in float, each with the reason."""
    batches: int = 0

    _repr_html_ = in_notebook

    def layer(self, name: str) -> LayerError:
        """One layer, by its dotted or its flat name."""
        found = next((layer for layer in self.layers if name in (layer.name, layer.node)), None)
        if found is None:
            raise KeyError(
                f"no quantized layer named {name!r}; there are {', '.join(x.name for x in self.layers)}"
            )
        return found

    def keep_float(self, most: int = 3) -> tuple[Advice, ...]:
        """At most ``most`` layers that cause far more noise than the others, the worst first.

        A layer is listed if it causes at least three times the noise of the median layer and its own result has less
        than 30 dB. Where every layer is equally bad none is named: then all of them need more bits.
        """
        if not self.layers:
            return ()
        noise = {layer.name: min(layer.alone.relative, 1.0) for layer in self.layers}
        total, middle = sum(noise.values()), statistics.median_low(noise.values())
        ranked = sorted(self.layers, key=lambda layer: -noise[layer.name])[:most]
        return tuple(
            Advice(
                layer=layer.name,
                share=noise[layer.name] / total,
                sqnr_db=layer.alone.sqnr_db,
                because=_because(layer, noise[layer.name] / total),
            )
            for layer in ranked
            if layer.alone.sqnr_db < HARMLESS_DB and noise[layer.name] >= STANDS_OUT * middle
        )

    def apply(self, config: QConfig, most: int = 3) -> QConfig:
        """``config`` with the layers that ``keep_float`` names left in float."""
        names = [advice.layer for advice in self.keep_float(most)]
        bits = dict.fromkeys(names, FLOAT)
        weighted = {name: FLOAT for name in names if self.layer(name).weight is not None}
        return with_layer_bits(config, weights=weighted, inputs=bits)

    def table(self, *, sort: str = "graph") -> Table:
        """For a terminal: one row for each layer, in the order of the graph or with the worst (``sqnr``) first."""
        orders: dict[str, Callable[[LayerError], float]] = {
            "graph": lambda layer: 0.0,
            "sqnr": lambda layer: layer.alone.sqnr_db,
        }
        head = (
            "layer",
            "operator",
            "W",
            "A",
            "SQNR alone",
            "SQNR",
            "cosine",
            "MSE",
            "input range",
            "clipped",
        )
        table = Table(title="errors of each layer's result against float")
        for index, name in enumerate(head):
            table.add_column(name, justify="left" if index < 4 else "right", overflow="fold")
        for layer in sorted(self.layers, key=orders[sort]):
            first = layer.inputs[0] if layer.inputs else None
            most_clipped = max((tensor.clipped for tensor in layer.inputs), default=0.0)
            table.add_row(
                layer.name,
                layer.op,
                layer.weight.codes if layer.weight else "",
                first.codes if first else "float",
                decibels(layer.alone.sqnr_db),
                decibels(layer.together.sqnr_db),
                f"{layer.together.cosine:.5f}",
                f"{layer.together.mse:.2e}",
                f"{first.lo:.3g} to {first.hi:.3g}" if first else "",
                f"{most_clipped:.2%}" if layer.inputs else "",
            )
        return table

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = ("batches", "output", "layers", "tensors", "left_float")
        found = {name: to_plain(getattr(self, name)) for name in names}
        return found | {"keep_float": to_plain(self.keep_float())}

    def __rich__(self) -> Group:
        output = f"the model's outputs: {decibels(self.output.sqnr_db)}, cosine {self.output.cosine:.5f}"
        advice = self.keep_float()
        lines = [Text(output)]
        if advice:
            lines.append(Text("keep in float:"))
            lines += [Text(f"  {item}") for item in advice]
        else:
            lines.append(Text("no layer stands out: keeping single layers in float would change little"))
        return Group(self.table(), *lines)

    __str__ = as_text


def _because(layer: LayerError, share: float) -> str:
    text = f"it causes {share:.0%} of the noise of all layers ({decibels(layer.alone.sqnr_db)} by itself)"
    worst = layer.worst
    if worst is None or math.isinf(worst.agreement.sqnr_db):
        return text
    kind = "its weight" if worst.side == "W" else f"its input {worst.name}"
    return f"{text}; {kind} keeps {decibels(worst.agreement.sqnr_db)}: {worst.why()}"
