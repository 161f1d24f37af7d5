"""The graph as placement sees it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.quantization.plan.layers import Layers, layers_for_config
from sparsebit.targets import TARGETS


class Net(nn.Module):
    """A product with a parameter, a split, a mask and a kept identity."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.eye(4))
        self.point = nn.Identity()
        self.point.remove = False  # type: ignore[assignment]

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.matmul(x, self.kernel).split(2, -1)
        return self.point(first).flatten(), torch.softmax(second.masked_fill(mask, -1e9), -1)


def layers() -> Layers:
    gm = capture(Net().eval(), (torch.ones(3, 4), torch.zeros(3, 2, dtype=torch.bool)))
    return Layers(gm, TARGETS["virtual"])


def test_a_product_with_a_parameter_is_a_linear_layer_named_by_its_parameter() -> None:
    found = layers()
    (product,) = [node for node in found.nodes if found.op(node) == "linear"]
    assert "kernel" in found.names(product) and found.first_and_last == {product}


def test_layers_are_found_without_the_answers_about_them() -> None:
    found, every = layers(), layers_for_config(layers().gm)
    assert [layer.op for layer in every if layer.op == "linear"] == ["linear"]
    assert {name for layer in every for name in layer.names} >= {"kernel", "point"}
    assert len(every) == sum(node.op.startswith("call_") for node in found.nodes)


def test_numbers_are_followed_through_splits_and_other_moves_to_their_origin() -> None:
    found = layers()
    (flatten,) = [node for node in found.nodes if found.op(node) == "flatten"]
    (product,) = [node for node in found.nodes if found.op(node) == "linear"]
    assert found.moves(flatten) and found.origin(flatten) is product


def test_markers_and_masked_tensors_are_known() -> None:
    found = layers()
    assert [node.name for node in found.nodes if found.is_marker(node)] == ["point"]
    assert [found.op(node) for node in found.masked] == ["masked_fill"]
