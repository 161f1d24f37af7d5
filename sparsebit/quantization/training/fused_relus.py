"""ReLUs computed by the kernels of the quantizers after them: this saves a GPU one read and write of an activation.

The graph keeps its ReLUs. During a forward pass its module runs other code, in which a quantizer gets the input of the
ReLU and a flag to apply it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import MethodType
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph_module import _forward_from_src

from sparsebit.graph.capture.module import reads_privately
from sparsebit.graph.ops import op_name
from sparsebit.kernels.launch import AVAILABLE
from sparsebit.numerics import snapping
from sparsebit.quantization.modules.weights import quantizer_at
from sparsebit.quantization.quantizers import Quantizer

USED = True  # False leaves every ReLU an operator of its own; replaced in benchmarks to compare


class FusedRelus:
    """The code of a graph with its ReLUs in the quantizers, generated once for each version of the graph's code."""

    def __init__(self) -> None:
        self._code: str | None = None  # that of the graph
        self._forward: Callable[..., Any] | None = None
        self._relus: list[nn.Module] = []
        self._quantizers: list[Quantizer] = []

    @contextlib.contextmanager
    def applied(self, gm: GraphModule) -> Iterator[None]:
        """Inside the block the module runs the fused code, if it is on a GPU and these parts have no hooks."""
        if not (USED and snapping.USE_KERNELS and AVAILABLE):
            yield
            return
        if vars(gm)["_code"] is not self._code:
            self._write(gm)
        used = self._forward is not None and runs_kernels(self._quantizers[0])
        if not used or any(map(_is_watched, self._relus)) or any(map(_is_watched, self._quantizers)):
            yield
            return
        vars(gm)["forward"] = MethodType(self._forward, gm)  # type: ignore[arg-type]
        try:
            yield
        finally:
            vars(gm).pop("forward", None)

    def _write(self, gm: GraphModule) -> None:
        pairs = find_pairs(gm)
        modules = [gm.get_submodule(str(relu.target)) for relu, _ in pairs if relu.op == "call_module"]
        found = [quantizer_at(gm, node) for _, node in pairs]
        self._relus, self._quantizers = modules, [quantizer for quantizer in found if quantizer is not None]
        self._code, self._forward = vars(gm)["_code"], _forward_of(gm.graph, pairs) if pairs else None


def find_pairs(gm: GraphModule) -> list[tuple[Node, Node]]:
    """Each ReLU that only a quantizer reads, and that quantizer."""
    found = []
    for node in gm.graph.nodes:
        quantizer = quantizer_at(gm, node)
        if quantizer is None or type(quantizer).forward is not Quantizer.forward:
            continue
        relu = node.args[0]
        if op_name(gm, relu) == "relu" and set(relu.users) == {node} and reads_privately(gm, relu):
            found.append((relu, node))
    return found


def _forward_of(graph: Graph, pairs: list[tuple[Node, Node]]) -> Callable[..., Any]:
    """The code of a graph without these ReLUs."""
    own = deepcopy(graph)
    nodes = {node.name: node for node in own.nodes}
    for relu, quantizer in pairs:
        nodes[quantizer.name].args = (nodes[relu.name].args[0], True)
        own.erase_node(nodes[relu.name])
    code = own.python_code(root_module="self")
    return _forward_from_src(code.src, code.globals)


def runs_kernels(quantizer: Quantizer) -> bool:
    """Whether a quantizer is on a device with kernels."""
    return quantizer.scale.is_cuda


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
