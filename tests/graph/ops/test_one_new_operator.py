"""One OpSpec and one sample: a user's own operator is captured, placed, pruned, exported and costed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.analysis import cost
from sparsebit.errors import GraphError, SparsebitError
from sparsebit.export import export_onnx
from sparsebit.graph.capture import capture
from sparsebit.graph.ops import bind, coverage, op_name, register_op, unregister_op
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel


class ScaledLinear(nn.Module):
    """A linear layer whose result is multiplied by a constant: the user's own layer."""

    def __init__(self, inputs: int, outputs: int, gain: float = 2.0) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(outputs, inputs) / 4),
            nn.Parameter(torch.zeros(outputs)),
        )
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) * self.gain


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    register_op(
        name="scaled_linear",
        targets=(ScaledLinear,),
        like="linear",
        placed_as="linear",
        with_weight=lambda module, weight, x: F.linear(x, weight, module.bias) * module.gain,
    )
    yield
    unregister_op("scaled_linear")


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(), ScaledLinear(16, 24), nn.ReLU(), nn.Linear(24, 8)
    ).eval()


@pytest.fixture
def sample() -> Tensor:
    return torch.randn(32, 12, generator=torch.Generator().manual_seed(1))


def test_it_is_captured_as_one_known_node(net: nn.Module, sample: Tensor) -> None:
    gm = capture(net, sample)
    (node,) = [node for node in gm.graph.nodes if op_name(gm, node) == "scaled_linear"]
    call = bind(gm, node)
    assert call is not None and call.weight_name == "2.weight" and coverage(gm).node_share == 1
    torch.testing.assert_close(gm(sample), net(sample))


def test_it_is_costed(net: nn.Module, sample: Tensor) -> None:
    rows = {row.name: row for row in cost(capture(net, sample)).rows}
    assert rows["_2"].op == "scaled_linear" and rows["_2"].macs == 32 * 16 * 24


@pytest.mark.parametrize("preset", ["int8_onnxruntime", "int8_openvino", "int8_tensorrt"])
def test_it_is_placed_quantized_and_exported(
    net: nn.Module, sample: Tensor, preset: str, tmp_path: Path
) -> None:
    qmodel = QuantModel(net, preset, example_inputs=(sample,))
    assert "2.weight" in {tensor.name for tensor in qmodel.plan.weights()}
    assert any("_2" in tensor.consumers for tensor in qmodel.plan.activations())
    qmodel.calibrate([sample], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert 0 < (qmodel(sample) - net(sample)).norm() < 0.1 * net(sample).norm()
    done = export_onnx(qmodel, sample, tmp_path / "net.onnx")
    assert done.report is not None and done.report.ok and "2.weight" in done.exported.tensors


def test_its_channels_are_pruned(net: nn.Module, sample: Tensor) -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel = SparseModel(net, config, example_inputs=(sample,))
    smodel.calc_params()
    masked = smodel(sample)
    small = smodel.shrink()
    shapes = {name: tuple(tensor.shape) for name, tensor in small.state_dict().items()}
    assert shapes["2.weight"] == (16, 8) and shapes["2.bias"] == (16,)  # rounded to 8
    torch.testing.assert_close(small(sample), masked)


def test_an_activation_is_one_row_too(sample: Tensor) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.special.entr(self.a(x)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net = Net().eval()
    before = capture(net, sample)
    assert coverage(before).unknown, "torch.special.entr is not in the table"
    register_op(name="entr", targets=(torch.special.entr,), like="gelu", signature="input", placed_as="gelu")
    try:
        gm = capture(net, sample)
        assert not coverage(gm).unknown
        plan = QuantModel(net, "int8_onnxruntime", example_inputs=(sample,)).plan
        assert "gelu" in {edge.op for edge in plan.edges}
        config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
        smodel = SparseModel(net, config, example_inputs=(sample,))
        smodel.calc_params()
        small = smodel.shrink()
        assert tuple(small.state_dict()["a.weight"].shape) == (8, 12)
    finally:
        unregister_op("entr")


@pytest.mark.parametrize(
    ("with_weight", "told"),
    [
        ({}, "ScaledLinear cannot be run with a quantized weight"),
        (
            {"with_weight": lambda module, weight, x: F.linear(x, weight, module.bias)},
            "does not compute what",
        ),
        ({"with_weight": lambda module, weight, x: x}, r"shape \[32, 24\]\n.*shape \[32, 16\]"),
        ({"with_weight": lambda module, x: x}, "of ScaledLinear failed: TypeError"),
    ],
)
def test_a_weight_is_not_quantized_in_another_computation(
    net: nn.Module, sample: Tensor, with_weight: Any, told: str
) -> None:
    fields = {"like": "linear", "placed_as": "linear", **with_weight}
    register_op(name="scaled_linear", targets=(ScaledLinear,), replace=True, **fields)
    with pytest.raises(SparsebitError, match=told):
        QuantModel(net, "int8_onnxruntime", example_inputs=(sample,))
    unregister_op("scaled_linear")


def test_a_class_that_inherits_its_forward_needs_no_other(sample: Tensor) -> None:
    class Named(nn.Linear):
        pass

    register_op(name="named_linear", targets=(Named,), like="linear", placed_as="linear")
    net = nn.Sequential(Named(12, 4)).eval()
    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(sample,))
    assert "0.weight" in qmodel.quantizers
    unregister_op("named_linear")


def test_a_channel_rule_that_does_not_fit_is_told(net: nn.Module, sample: Tensor) -> None:
    register_op(name="scaled_linear", targets=(ScaledLinear,), replace=True, like="relu")
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    with pytest.raises(
        GraphError, match=r"rule of linear failed[\s\S]*registered operator \(scaled_linear\)"
    ):
        SparseModel(net, config, sample)
    unregister_op("scaled_linear")
