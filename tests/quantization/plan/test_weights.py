"""Which weights are quantized, along which axis, and the notes about the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.config import load_qconfig
from sparsebit.graph.capture import capture
from sparsebit.quantization.plan import QuantPlan, make_plan
from tests.quantization.nets import config


def plan(model: nn.Module, x: Tensor, target: str = "virtual", **changes: object) -> QuantPlan:
    return make_plan(capture(model.eval(), x), load_qconfig(config(target, **changes)))


def test_output_channels_are_found_in_transposed_and_grouped_convolutions() -> None:
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 6, 3, groups=2), nn.Conv2d(6, 6, 1, groups=6)
    )
    made = plan(net, torch.zeros(1, 4, 8, 8), W__QSCHEME="per-channel-symmetric")
    layouts = {weight.name: (*weight.layout.axes, weight.layout.groups) for weight in made.weights()}
    assert layouts == {"0.weight": (0, 1), "1.weight": (1, 2), "2.weight": (0, 1)}


def test_a_table_that_rewrites_itself_stays_in_float_with_a_note() -> None:
    net = nn.Sequential(nn.Embedding(8, 4, max_norm=1.0), nn.Linear(4, 4))
    made = plan(net, torch.zeros(2, 3, dtype=torch.int64))
    assert [weight.name for weight in made.weights()] == ["1.weight"]
    assert made.notes == ("the weight of _0 stays in float: max_norm rewrites it as the model runs",)


def test_one_weight_read_twice_has_one_quantizer() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.words(ids))  # type: ignore[no-any-return]

    (weight,) = plan(Tied(), torch.zeros(2, 3, dtype=torch.int64)).weights()
    assert set(weight.consumers) == {"words", "head"} and weight.layout.axes == (0,)


def test_a_layer_without_integer_weights_is_listed_with_the_targets_that_have_them() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 3))
    assert plan(net, torch.zeros(1, 3, 8, 8), "onnxruntime").notes == (
        "the weight of _1 stays in float: conv_transpose2d has no integer weights on onnxruntime; "
        "BACKEND openvino or tensorrt or virtual quantizes it",
    )
