"""The reasons a plan gives, as a user reads them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.config import load_qconfig
from sparsebit.errors import ConfigError
from sparsebit.graph.capture import capture
from sparsebit.quantization import QuantModel
from sparsebit.quantization.plan import QuantPlan, make_plan
from tests.quantization.nets import config


def reasons(plan: QuantPlan) -> dict[str, str]:
    return {edge.consumer: edge.reason for edge in plan.edges if edge.tensor is None}


class Embedded(nn.Module):
    """Word and position embeddings added, a norm, a linear layer: the bottom of every encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(16, 8), nn.Embedding(8, 8)
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        return self.fc(self.norm(x))  # type: ignore[no-any-return]


def test_a_float_input_is_named_once_with_its_own_reason() -> None:
    plan = make_plan(
        capture(Embedded().eval(), torch.zeros(2, 8, dtype=torch.int64)), load_qconfig(config("tensorrt"))
    )
    assert (
        reasons(plan)["add"]
        == "its input words is not quantized: the result of embedding is float on tensorrt"
    )


def test_a_weight_that_stays_in_float_is_listed_with_what_would_quantize_it() -> None:
    plan = make_plan(
        capture(Embedded().eval(), torch.zeros(2, 8, dtype=torch.int64)), load_qconfig(config("tensorrt"))
    )
    assert plan.notes[0] == (
        "the weight of words stays in float: embedding has no integer weights on tensorrt; "
        "BACKEND onnxruntime or openvino or virtual quantizes it"
    )


def test_what_is_quantized_only_on_request_says_what_to_set() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + torch.matmul(self.b(x), x.transpose(0, 1))  # type: ignore[no-any-return]

    gm = capture(Sum().eval(), torch.zeros(4, 4))
    found = reasons(make_plan(gm, load_qconfig(config("virtual"))))
    assert found["add"] == "add is not quantized by default on virtual; set A.QADD.ENABLE_QUANT: true"
    found = reasons(make_plan(gm, load_qconfig(config("onnxruntime"))))
    assert (
        found["matmul"]
        == 'matmul is not quantized by default on onnxruntime; set A.SPECIFIC: {"matmul": [...]}'
    )


class Marked(nn.Module):
    """Two layers with a point to quantize between them."""

    def __init__(self, remove: bool) -> None:
        super().__init__()
        self.a, self.point, self.b = nn.Linear(4, 4), nn.Identity(), nn.LayerNorm(4)
        self.point.remove = remove  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.point(self.a(x)))  # type: ignore[no-any-return]


def test_an_identity_that_was_kept_is_a_point_to_quantize() -> None:
    rule = {"point": ["QUANTIZER.BIT", 4]}
    gm = capture(Marked(remove=False).eval(), torch.zeros(2, 4))
    for target in ("virtual", "onnxruntime"):
        plan = make_plan(gm, load_qconfig(config(target, A__SPECIFIC=rule)))
        (tensor,) = [tensor for tensor in plan.activations() if "point" in tensor.consumers]
        assert tensor.producer == "a" and tensor.spec.bits == 4
        assert "point" not in reasons(plan)


@pytest.mark.parametrize("target", ["onnxruntime", "virtual"])
def test_a_kept_identity_is_quantized_without_a_rule_too(target: str) -> None:
    plan = make_plan(capture(Marked(remove=False).eval(), torch.zeros(2, 4)), load_qconfig(config(target)))
    assert any("point" in tensor.consumers for tensor in plan.activations())


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "virtual"])
def test_a_table_of_embeddings_is_quantized_row_by_row(target: str) -> None:
    gm = capture(Embedded().eval(), torch.zeros(2, 8, dtype=torch.int64))
    plan = make_plan(gm, load_qconfig(config(target, W__QSCHEME="per-channel-symmetric")))
    tables = {tensor.name: tensor.layout for tensor in plan.weights()}
    assert tables["words.weight"].kind == "channel" and tables["words.weight"].axes == (0,)


@pytest.mark.parametrize(("layout", "axis"), [("NCHW", 1), ("NLC", 2)])
def test_a_scale_per_channel_that_the_runtime_cannot_run_is_refused_at_once(layout: str, axis: int) -> None:
    """OpenVINO opens no file with such a linear layer; a convolution, or a table of rows, it does."""
    net, x = nn.Sequential(nn.Linear(8, 4)).eval(), torch.randn(2, 5, 8)
    asked = config("openvino", A__QSCHEME="per-channel-affine", A__OBSERVER__LAYOUT=layout)
    with pytest.raises(ConfigError) as caught:
        QuantModel(net, asked, x)
    assert str(caught.value) == (
        "qconfig: A of layer '0': QSCHEME, expected per-tensor-affine with BACKEND openvino, "
        f"got 'per-channel-affine' along axis {axis} of 3; set A.SPECIFIC: {{\"0\": [QSCHEME, per-tensor-affine]}}"
    )
    changed = asked | {"A": asked["A"] | {"SPECIFIC": {"0": ["QSCHEME", "per-tensor-affine"]}}}
    assert QuantModel(net, changed, x).quantizers["input_1"].layout.kind == "tensor"
    assert QuantModel(net, asked, x[:, 0]).quantizers["input_1"].layout.kind == "channel"


class Stem(nn.Module):
    """A first layer with an activation, a depthwise and two more convolutions, as mobile nets begin."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.stem, self.activation = nn.Conv2d(3, 16, 3), activation
        self.depthwise, self.wide = nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 40, 1)
        self.project = nn.Conv2d(40, 16, 1)
        self.depthwise_2, self.last = nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(torch.relu(self.depthwise(self.activation(self.stem(x)))))
        return self.last(self.depthwise_2(self.project(x)))  # type: ignore[no-any-return]


def test_narrow_convolutions_before_integers_stay_in_float() -> None:
    x = torch.randn(1, 3, 12, 12)
    plan = QuantModel(Stem(nn.Hardswish()).eval(), "int8_onnxruntime", example_inputs=(x,)).plan
    found = reasons(plan)
    assert {"stem", "depthwise"} <= set(found) and not {"wide", "project", "depthwise_2", "last"} & set(found)
    assert found["stem"] == "its input x is not quantized, and the operator is too small to quantize it for"
    assert [tensor.producer for tensor in plan.weights()] == [
        *("wide.weight", "project.weight", "depthwise_2.weight", "last.weight")
    ]


@pytest.mark.parametrize(
    ("activation", "setting"),
    [
        (nn.ReLU(), {}),
        (nn.Hardswish(), {"A__SPECIFIC": [{"stem": ["QUANTIZER.BIT", 6]}]}),
        (nn.Hardswish(), {"W__SPECIFIC": [{"stem": ["QUANTIZER.BIT", 6]}]}),
    ],
)
def test_a_stem_without_a_gate_and_one_that_is_named_are_quantized(
    activation: nn.Module, setting: dict[str, object]
) -> None:
    x = torch.randn(1, 3, 12, 12)
    plan = QuantModel(Stem(activation).eval(), config("onnxruntime", **setting), example_inputs=(x,)).plan
    assert "stem.weight" in [tensor.producer for tensor in plan.weights()] and "stem" not in reasons(plan)
