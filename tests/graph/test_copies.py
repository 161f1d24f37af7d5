"""Models are copied that hold results of a forward, which ``copy.deepcopy`` refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.copies import copy_module
from sparsebit.sparse import SparseModel


class Remembers(nn.Module):
    """Keeps activations and a running mean of its last forward, with their gradients."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.utils.weight_norm(nn.Linear(4, 16)), nn.Linear(16, 2)
        self.register_buffer("mean", torch.zeros(16))
        self.seen: dict[str, list[Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        self.mean, self.seen = h.mean(0), {"h": [h]}
        logits: Tensor = self.last(h)
        return logits


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_results_of_the_last_forward_do_not_prevent_a_copy() -> None:
    model, x = Remembers().eval(), torch.randn(3, 4)
    wanted = model(x)
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    twin = copy_module(model)
    assert isinstance(twin, Remembers) and torch.equal(twin.mean, model.mean)
    assert torch.equal(twin.seen["h"][0], model.seen["h"][0]) and twin.seen["h"][0] is not model.seen["h"][0]
    assert torch.equal(twin(x), wanted)
    config = {"SPARSER": {"TYPE": "unstructured", "STRATEGY": "l1norm", "RATIO": 0.5, "CLASSIFIER": True}}
    smodel = SparseModel(model, config, example_inputs=(x,))
    assert torch.allclose(smodel(x), wanted)
    smodel.calc_params()
    rows = {row.name: row for row in smodel.report().rows}
    assert rows["last"].after == 16 and (rows["first"].before, rows["first"].after) == (64, 64)
    assert rows["first"].note == (
        "its weight is computed from first.weight_v and first.weight_g; make it a parameter first, "
        "as remove_parametrizations and remove_weight_norm do"
    )
