"""The quantized graph module, with every operator under its flat name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node

from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.ops import bind
from sparsebit.quantization.modules.qmodules import Reader
from sparsebit.quantization.quantizers import Quantizer


@dataclass(frozen=True)
class OperatorView(Reader):
    """A function in the graph (an add, a matmul) as an operator with quantizers on its inputs."""

    node: Node
    input_quantizers: tuple[Quantizer, ...] = ()
    weight_quantizer: Quantizer | None = None


class QuantGraph(CapturedModule):
    """A captured graph with quantizers. ``graph.layer1_0_conv1`` is ``layer1.0.conv1``, as in the 2022 Sparsebit."""

    why_not_capture = (
        "pass the QuantModel itself, or build the module around the float model and quantize that"
    )

    @classmethod
    def around(cls, captured: CapturedModule) -> QuantGraph:
        """The same graph and modules, as an instance of this class."""
        quantized = cls(captured, captured.graph, type(captured).__name__)
        quantized._mode_flags = captured._mode_flags
        for name, value in vars(captured).items():
            if isinstance(value, Tensor):  # in the place of a frozen weight: torch.fx does not carry it over
                setattr(quantized, name, value)
        return quantized

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantGraph:
        # Not self.around: every graph module has its own class, which cannot create another one.
        return QuantGraph.around(super().__deepcopy__(memo))

    def __copy__(self) -> QuantGraph:
        return QuantGraph.around(super().__copy__())

    def __getattr__(self, name: str) -> Any:
        parts = self.__dict__.get("_modules")  # most of what generated code asks for, in every forward
        if parts is not None and name in parts:
            return parts[name]
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
    above = (_quantizer_above(gm, source) for source in node.all_input_nodes)
    found = list(dict.fromkeys(quantizer for quantizer in above if quantizer is not None))
    weights = [quantizer for quantizer in found if quantizer.side == "W"]
    inputs = tuple(quantizer for quantizer in found if quantizer.side == "A")
    return OperatorView(node, inputs, weights[0] if weights else None)


def _quantizer_above(gm: QuantGraph, node: Node) -> Quantizer | None:
    """The quantizer whose numbers a node passes on, directly or moved."""
    while True:
        if node.op == "call_module":
            module = gm.get_submodule(str(node.target))
            if isinstance(module, Quantizer):
                return module
        call = bind(gm, node)
        if call is None or not call.activations or not call.moves:
            return None
        node = call.activations[0]
