"""Which parameter a weight is, and which of its axes each dim, where the graph only transposes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.sparse import SparseModel
from sparsebit.sparse.layers import find_layers
from sparsebit.sparse.stored_weight import stored_weight

WAYS = {
    "w.T": lambda w: w.T,
    "w.t()": lambda w: w.t(),
    "w.mT": lambda w: w.mT,
    "permute": lambda w: w.permute(1, 0),
    "twice": lambda w: w.transpose(0, 1).movedim(0, 1).T,
}


class Product(nn.Module):
    """A product with a parameter that is transposed in some way, or with what is computed from it."""

    def __init__(self, way: object) -> None:
        super().__init__()
        self.way = way
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last((x @ self.way(self.weight)).relu())  # type: ignore[operator]
        return out


@pytest.mark.parametrize("way", WAYS)
def test_a_transposed_parameter_is_a_layer(way: str) -> None:
    gm = capture(Product(WAYS[way]), torch.randn(2, 4))
    product = next(layer for layer in find_layers(gm) if layer.tensor == "weight")
    assert product.name == "weight" and product.axes == (0, 1)
    found = stored_weight(gm, product.call.arguments["other"])
    assert found is not None and found.name == "weight" and found.axes == (1, 0)


def test_what_is_computed_is_not_a_stored_weight() -> None:
    gm = capture(Product(lambda w: (2 * w).T), torch.randn(2, 4))
    node = next(node for node in gm.graph.nodes if "matmul" in node.name)
    assert stored_weight(gm, node.args[1]) is None
    assert stored_weight(gm, node.args[0]) is None  # an input of the model
    assert stored_weight(gm, 3) is None


def test_it_is_scored_and_pruned_under_its_name() -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "activation_norm", "RATIO": 0.0, "ROUND_TO": 1}}
    config["SPARSER"]["SPECIFIC"] = [{"weight": {"RATIO": 0.5}}]
    smodel = SparseModel(Product(WAYS["w.T"]), config, torch.randn(2, 4))
    smodel.calc_params([torch.randn(8, 4)])
    assert smodel.shrink().get_parameter("weight").shape == (3, 4)
