"""What layers compute: the values of chosen nodes of a graph, and how far they are from those of another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node

from benchmarks.ptq.method import Args
from sparsebit import capture
from sparsebit.graph.ops import bind
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.run import flatten_call


class _Recorder(Interpreter):
    def __init__(self, gm: GraphModule, name_of: Callable[[Node], str | None]) -> None:
        super().__init__(gm)
        self.name_of, self.seen = name_of, dict[str, Tensor]()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        name = self.name_of(n)
        if name is not None and isinstance(value, Tensor):
            while name in self.seen:  # a layer that is used again
                name += "'"
            self.seen[name] = value
        return value


@torch.no_grad()
def record(gm: GraphModule, args: Args, name_of: Callable[[Node], str | None]) -> dict[str, Tensor]:
    """The values of all nodes that ``name_of`` names."""
    recorder = _Recorder(gm, name_of)
    recorder.run(*flatten_call(gm, args, {}), enable_io_processing=False)
    return recorder.seen


def layer_name(gm: GraphModule, node: Node) -> str | None:
    """The module whose weight a convolution or linear node of a captured graph uses, also behind a quantizer."""
    call = bind(gm, node)
    if call is None or call.spec.name not in LAYERS:
        return None
    name, weight = call.weight_name, call.arguments.get("weight")
    while name is None and isinstance(weight, Node):
        if weight.op == "get_attr":
            name = str(weight.target)
        weight = weight.args[0] if weight.op == "call_module" else None
    return None if name is None else name.removesuffix(".weight")


LAYERS = frozenset(f"{kind}{rank}d" for kind in ("conv", "conv_transpose") for rank in (1, 2, 3)) | {"linear"}


class FloatLayers:
    """The float model as a graph with batch norm folded: what the layers of every tool are compared with."""

    def __init__(self, model: nn.Module, example: Args) -> None:
        self.gm = capture(model, example)
        fold_batch_norm(self.gm)

    def __call__(self, args: Args) -> dict[str, Tensor]:
        return record(self.gm, args, lambda node: layer_name(self.gm, node))


class Sqnr:
    """Signal to quantization noise over several batches, in decibels."""

    def __init__(self) -> None:
        self.signal: dict[str, float] = {}
        self.noise: dict[str, float] = {}

    def add(self, exact: Mapping[str, Tensor], rounded: Mapping[str, Tensor]) -> None:
        """Take one batch in; only values that both have, in the same shape, can be compared."""
        for name, value in exact.items():
            other = rounded.get(name)
            if other is not None and other.shape == value.shape:
                wide = value.double()
                self.signal[name] = self.signal.get(name, 0.0) + float(wide.square().sum())
                self.noise[name] = self.noise.get(name, 0.0) + float((wide - other).square().sum())

    def decibels(self) -> dict[str, float]:
        """By name; 200 where nothing differs."""
        return {
            name: 200.0 if noise == 0 else 10 * math.log10(max(self.signal[name], 1e-30) / noise)
            for name, noise in self.noise.items()
        }
