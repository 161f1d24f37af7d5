"""An ONNX graph under construction: nodes, constants, inputs and outputs in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from torch import Tensor

MICROSOFT = "com.microsoft"
OF_MICROSOFT = (
    *("MatMulNBits", "GatherBlockQuantized", "FusedMatMul", "QMoE", "GroupQueryAttention", "RotaryEmbedding"),
    *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
)

Inputs = Sequence[ir.Value | None]


class OnnxTape:
    """Adds nodes to one graph; ``model`` is the result."""

    def __init__(self) -> None:
        self._tape = ir.tape.Tape()
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []

    def op(
        self, kind: str, inputs: Inputs, attributes: Mapping[str, Any] | None = None, name: str | None = None
    ) -> ir.Value:
        """A node with one output."""
        domain = MICROSOFT if kind in OF_MICROSOFT else ""
        return self._tape.op(kind, inputs, attributes, domain=domain, name=name)

    def ops(self, kind: str, inputs: Inputs, attributes: Mapping[str, Any], count: int) -> Sequence[ir.Value]:
        """A node with several outputs."""
        domain = MICROSOFT if kind in OF_MICROSOFT else ""
        return self._tape.op_multi_out(kind, inputs, attributes, num_outputs=count, domain=domain)

    def constant(self, value: Tensor | np.ndarray[Any, Any] | float, name: str = "") -> ir.Value:
        """A tensor stored in the file; a number becomes float32."""
        if isinstance(value, Tensor):
            value = value.detach().contiguous().cpu().numpy()
        array = np.array(value, np.float32) if isinstance(value, float) else value
        name = name or f"constant_{len(self._tape.initializers)}"
        return self._tape.initializer(ir.tensor(array, name=name), name=name)

    def integers(self, values: Sequence[int] | int) -> ir.Value:
        """A constant of int64."""
        return self.constant(np.array(values, np.int64))

    def input(
        self, name: str, shape: Sequence[str | int], dtype: ir.DataType = ir.DataType.INT64
    ) -> ir.Value:
        """An input from the engine."""
        self._inputs.append(ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype)))
        return self._inputs[-1]

    def output(self, value: ir.Value, name: str, shape: Sequence[str | int]) -> None:
        """An output in float32; logits come first."""
        value.name, value.shape, value.type = name, ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
        self._outputs.insert(0 if name == "logits" else len(self._outputs), value)

    def model(self) -> ir.Model:
        """The finished model."""
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": 22, MICROSOFT: 1},
            name="decoder",
        )
        return ir.Model(graph, ir_version=10, producer_name="sparsebit")
