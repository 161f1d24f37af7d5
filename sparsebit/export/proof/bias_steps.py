"""By how much integer kernels may move a result because they round its bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sparsebit.runtime.packages import require

GAIN = 1.2  # the steepest activation between a product and its codes: that of gelu and silu is 1.13 at most
PRODUCTS = ("Conv", "Gemm", "MatMul")


def bias_steps(proto: Any, folder: Path) -> dict[str, float]:
    """For every quantized activation with a product before it, half a step of the bias in steps of its own codes.

    The bias of a product of integers is a multiple of input scale times weight scale, so it is off by half of that.
    """
    return _Walk(proto, folder).found()


class _Walk:
    def __init__(self, proto: Any, folder: Path) -> None:
        graph, self.folder = proto.graph, str(folder)
        self.nodes = list(graph.node)
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}

    def found(self) -> dict[str, float]:
        result = {}
        for node in self.nodes:
            name, _, kind = node.name.rpartition("/")
            if node.op_type != "QuantizeLinear" or kind != "QuantizeLinear":
                continue
            if steps := self.behind(node.input[0]):
                result[name] = GAIN * steps / float(self.array(node.input[1]).min())
        return result

    def behind(self, name: str) -> float:
        """The sum over the products that are computed from codes between here and the quantized tensors before."""
        waiting, seen, total = [name], set(), 0.0
        while waiting:
            node = self.maker.get(waiting.pop())
            if node is None or node.op_type == "DequantizeLinear" or id(node) in seen:
                continue
            seen.add(id(node))
            if node.op_type in PRODUCTS:
                total += self.half_step(node)
            waiting += list(node.input)
        return total

    def half_step(self, node: Any) -> float:
        scales = []
        for name in node.input[:2]:
            maker = self.maker.get(name)
            while maker is not None and maker.op_type != "DequantizeLinear":
                maker = self.maker.get(maker.input[0]) if maker.input else None
            if maker is None or maker.input[1] not in self.tensors:
                return 0.0
            scales.append(float(self.array(maker.input[1]).max()))
        return 0.5 * scales[0] * scales[1]

    def array(self, name: str) -> Any:
        tensor = self.tensors.get(name)
        return (
            np.ones(1)
            if tensor is None
            else require("onnx").numpy_helper.to_array(tensor, base_dir=self.folder)
        )
