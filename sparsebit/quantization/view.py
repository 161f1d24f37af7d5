"""The quantized graph module, with every operator under its flat name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from sparsebit.graph.capture import CapturedModule
from sparsebit.quantization.qmodules import switch
from sparsebit.quantization.quantizers import Quantizer


@dataclass(frozen=True)
class OperatorView:
    """A function in the graph (an add, a matmul) as an operator with quantizers on what it reads."""

    node: Node
    input_quantizers: tuple[Quantizer, ...]
    weight_quantizer: Quantizer | None = None

    @property
    def input_quantizer(self) -> Quantizer | None:
        """The quantizer on the first tensor it reads that has one."""
        return self.input_quantizers[0] if self.input_quantizers else None

    def set_quant(self, w_quant: bool = False, a_quant: bool = False) -> None:
        """Switch the quantizers on what it reads on or off."""
        for quantizer in self.input_quantizers:
            switch(quantizer, a_quant)
        switch(self.weight_quantizer, w_quant)


class QuantGraph(CapturedModule):
    """A captured graph with quantizers. ``graph.layer1_0_conv1`` is the module ``layer1.0.conv1``, as of old."""

    @classmethod
    def around(cls, captured: CapturedModule) -> QuantGraph:
        """The same graph and parts, seen as this class."""
        quantized = cls(captured, captured.graph, type(captured).__name__)
        quantized._mode_flags = captured._mode_flags
        return quantized

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            graph = self.__dict__.get("_graph")
            node = next((node for node in graph.nodes if node.name == name), None) if graph else None
            if node is None or not node.op.startswith("call_"):
                raise
        if node.op == "call_module":
            return self.get_submodule(str(node.target))
        return _view(self, node)


def _view(gm: QuantGraph, node: Node) -> OperatorView:
    found = [
        module
        for source in node.all_input_nodes
        if source.op == "call_module"
        and isinstance(module := gm.get_submodule(str(source.target)), Quantizer)
    ]
    weights = [quantizer for quantizer in found if quantizer.side == "W"]
    inputs = tuple(quantizer for quantizer in found if quantizer.side == "A")
    return OperatorView(node, inputs, weights[0] if weights else None)
