"""A graph that is written node by node: domains, constants, and the order of inputs and outputs."""

from __future__ import annotations

import pytest
import torch

ir = pytest.importorskip("onnx_ir")


def test_nodes_constants_inputs_and_outputs() -> None:
    from sparsebit.llm.formats.onnx_tape import MICROSOFT, OnnxTape

    tape = OnnxTape()
    ids = tape.input("ids", ["batch_size", 4])
    rows = tape.op("Gather", [tape.constant(torch.eye(8)), ids])
    first, second = tape.ops("Split", [rows, tape.integers([2, 6])], {"axis": -1}, count=2)
    tape.output(second, "rest", ["batch_size", 4, 6])
    scaled = tape.op("FusedMatMul", [first, tape.constant(torch.ones(3, 2))], {"transB": 1}, name="a product")
    tape.output(tape.op("Mul", [scaled, tape.constant(0.5)]), "logits", ["batch_size", 4, 3])
    model = tape.model()
    graph = model.graph
    assert [value.name for value in graph.inputs] == ["ids"]
    assert [value.name for value in graph.outputs] == ["logits", "rest"], "logits come first"
    domains = {node.op_type: node.domain for node in graph}
    assert domains == {"Gather": "", "Split": "", "FusedMatMul": MICROSOFT, "Mul": ""}
    kinds = [str(value.dtype) for value in graph.initializers.values()]
    assert kinds == ["FLOAT", "INT64", "FLOAT", "FLOAT"] and model.ir_version == 10
