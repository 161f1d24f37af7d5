"""Names in the file: the user's own, each once."""

from __future__ import annotations

import onnx_ir
import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export.translate.naming import label_shapes, own_output_names, strip_prefix


def model_of(*names: str) -> onnx_ir.Model:
    """A chain of identities with these names."""
    value = onnx_ir.Value(name="x", shape=onnx_ir.Shape([1]), type=onnx_ir.TensorType(onnx_ir.DataType.FLOAT))
    inputs, nodes = [value], []
    for name in names:
        nodes.append(onnx_ir.Node("", "Identity", [value], name=name))
        value = nodes[-1].outputs[0]
        value.name = f"{name}_output_0"
    graph = onnx_ir.Graph(inputs, [value], nodes=nodes, opset_imports={"": 20})
    return onnx_ir.Model(graph, ir_version=9)


def test_the_prefix_of_the_tracer_goes_and_the_users_stays() -> None:
    model = model_of("/body/body.0/Conv", "/body/body/Conv", "/body/h/Clip", "h/Clip", "/body/body/0/Relu")
    strip_prefix(model)
    assert [node.name for node in model.graph] == ["0/Conv", "body/Conv", "h/Clip", "h/Clip_1", "body/0/Relu"]


class Structured(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> object:
        kinds = {"one": x + 1, "two": (x + 1, x + 2), "keys": {"logits": x + 1, "x": x + 2, "h": [x + 3]}}
        return kinds[self.kind]


@pytest.mark.parametrize(
    ("kind", "names"),
    [("one", ["output"]), ("two", ["output_0", "output_1"]), ("keys", ["logits", "output_x", "h_0"])],
)
def test_outputs_have_the_keys_of_the_model(kind: str, names: list[str]) -> None:
    assert own_output_names(capture(Structured(kind), torch.zeros(2, 3)), len(names), ["x"]) == names


def test_an_axis_that_moves_with_the_batch_is_labelled_whatever_the_tracer_said() -> None:
    model = model_of("/body/Reshape")
    model.graph.outputs[0].shape = onnx_ir.Shape([2, 4])
    label_shapes(model, {"x": {0: "batch"}}, [torch.zeros(2, 4)], ["y"], [(4, 4)])
    assert list(map(str, model.graph.outputs[0].shape)) == ["batch", "4"]
