"""What the choice of whole units has to respect beside ratios: recurrent widths, attention's cost, bad numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.analysis.node_cost import cost
from sparsebit.batches import DataError
from sparsebit.errors import GraphError, SparsebitError
from sparsebit.graph import CapturedModule
from sparsebit.sparse import SparseModel
from sparsebit.sparse.choose.masks import ScoreError, without_nan
from tests.sparse.nets import images, residual
from tests.sparse.zoo import STRUCTURES

HALF = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}


def pruned(name: str, *data: Any, **settings: Any) -> tuple[SparseModel, tuple[Any, ...]]:
    inputs = STRUCTURES[name].inputs()
    smodel = SparseModel(STRUCTURES[name].make(), {"SPARSER": {**HALF, "ROUND_TO": 1, **settings}}, inputs)
    smodel.calc_params(*data)
    return smodel, inputs


class Recurrent(nn.Module):
    """One recurrent layer and a classifier."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.run = nn.LSTM(6, 48, batch_first=True, **options)
        width = options.get("proj_size", 48) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.run(x)[0][:, -1])
        return y


@pytest.mark.parametrize(
    "options", [{}, {"proj_size": 24}, {"proj_size": 24, "num_layers": 2, "bidirectional": True}]
)
def test_hidden_units_are_rounded_in_every_layer_and_direction(options: dict[str, Any]) -> None:
    model, x = Recurrent(**options).double(), torch.zeros(2, 5, 6, dtype=torch.float64)
    smodel = SparseModel(model, {"SPARSER": {**HALF, "RATIO": 0.2}}, x)
    smodel.calc_params()
    run = smodel.shrink().run
    assert isinstance(run, nn.LSTM)
    assert run.hidden_size == 40  # 38.4 are asked for
    assert run.proj_size in ((16, 24) if options else (0,))


def test_what_is_projected_stays_wider_than_the_projection() -> None:
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    config = {**HALF, "ROUND_TO": 1, "RATIO": 0.0, "SPECIFIC": {"run": {"RATIO": 0.9}}}
    model = Recurrent(proj_size=24).double()
    smodel = SparseModel(model, {"SPARSER": config}, x)
    hidden, shown = (group for group in smodel.groups().free[::-1])
    assert (hidden.channels, shown.channels) == (48, 24)
    with pytest.raises(GraphError, match="narrower than the hidden units"):
        smodel.shrink_to({hidden.name: torch.arange(48) < 20})
    smodel.calc_params()
    run = smodel.shrink().run
    assert isinstance(run, nn.LSTM) and run.hidden_size > run.proj_size > 0
    with torch.no_grad():
        assert torch.allclose(smodel.shrink()(x), smodel(x), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["multi_query_fused", "fused_qkv", "attention_by_matmul", "attention_over_pixels"]
)
def test_the_cost_of_attention_is_exact(name: str) -> None:
    smodel, _ = pruned(name, TARGET="macs", RATIO=0.3)
    small, report = smodel.shrink(), smodel.report()
    assert isinstance(small, CapturedModule)
    assert report.macs_after == cost(small).macs
    assert report.macs_before == cost(smodel.model).macs
    assert report.reached is not None and report.reached.after == report.macs_after


def test_ranks_of_recurrent_cells() -> None:
    inputs = STRUCTURES["cell_on_cell"].inputs()
    smodel, _ = pruned("cell_on_cell", [(inputs,)], STRATEGY="hrank")
    assert {row.name: row.after for row in smodel.report().rows} == {"one": 10, "two": 4, "head": 5}
    # Two results, and no map.
    assert "one: HRank finds nothing to score in this layer" in str(smodel.report())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_wherever_they_are(bad: float) -> None:
    for name in dict(residual().named_parameters()):  # the classifier too, which no criterion looks at
        model = residual()
        model.get_parameter(name).data.flatten()[0] = bad
        with pytest.raises(SparsebitError, match=rf"not finite[\s\S]*{name}[\s\S]*1 of"):
            SparseModel(model, {"SPARSER": HALF}, images()).calc_params()


def test_scores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ScoreError, match=r"are NaN[\s\S]*conv1[\s\S]*1 NaN among 2"):
        without_nan(torch.tensor([1.0, float("nan")]), "conv1")


def test_an_operator_without_second_derivative_is_told() -> None:
    class Bag(nn.Sequential):
        def forward(self, ids: Tensor) -> Tensor:
            y: Tensor = super().forward(ids)
            return y

    model, ids = Bag(nn.EmbeddingBag(20, 16), nn.ReLU(), nn.Linear(16, 2)), torch.arange(8).reshape(2, 4)
    smodel = SparseModel(model, {"SPARSER": {**HALF, "STRATEGY": "taylor2"}}, (ids,))
    with pytest.raises(DataError, match=r"differentiated twice[\s\S]*taylor, fisher"):
        smodel.calc_params([(ids, torch.tensor([0, 1]))], functional.cross_entropy)
