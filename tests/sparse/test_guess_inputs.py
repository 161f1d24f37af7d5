"""Without example inputs: what can be guessed is, and otherwise the error says exactly what to give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.sparse import SparseModel, load, save
from sparsebit.sparse.guess_inputs import guess_inputs
from tests.sparse.nets import Residual, images, residual

HALF = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}


class Mixed(nn.Module):
    """Token ids, features, and an input that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.run = nn.Embedding(20, 16), nn.GRU(16, 24, batch_first=True)
        self.side, self.head = nn.Linear(7, 24), nn.Linear(24, 3)

    def forward(self, ids: Tensor, features: Tensor, scale: float = 1.0) -> Tensor:
        y: Tensor = self.head(torch.relu(self.run(self.table(ids))[0][:, -1] + self.side(features)))
        return y * scale


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (Residual, [(2, 3, 64, 64)]),
        (Mixed, [(2, 16), (2, 7)]),
        (lambda: nn.Sequential(nn.Conv1d(8, 8, 3, groups=2), nn.AvgPool1d(62)), [(2, 8, 64)]),
        (lambda: nn.Sequential(nn.ConvTranspose3d(4, 8, 3), nn.AvgPool3d(18)), [(2, 4, 16, 16, 16)]),
        (lambda: nn.Sequential(nn.Conv2d(1, 8, 5), nn.Flatten(), nn.Linear(8 * 24 * 24, 9)), [(2, 1, 28, 28)]),
    ],
)  # fmt: skip
def test_inputs_the_model_runs_on(make: Callable[[], nn.Module], sizes: list[tuple[int, ...]]) -> None:
    model = make()
    found = guess_inputs(model)
    assert [tuple(value.shape) for value in found] == sizes
    model(*found)


def test_the_recipe_without_inputs_removes_the_same(tmp_path: Path) -> None:
    one, other = (
        SparseModel(residual(), {"SPARSER": HALF}),
        SparseModel(residual(), {"SPARSER": HALF}, images()),
    )
    for smodel in (one, other):
        smodel.calc_params()
    small = one.shrink()
    assert torch.equal(small(images()), other.shrink()(images()))
    assert one.report().macs_before is None  # of which image?
    save(small, tmp_path)
    assert torch.equal(load(tmp_path, residual())(images()), small(images()))


@pytest.mark.parametrize("target", ["macs", "latency"])
def test_what_depends_on_sizes_asks_for_them(target: str) -> None:
    smodel = SparseModel(residual(), {"SPARSER": {**HALF, "TARGET": target}})
    with pytest.raises(SparsebitError, match=r"sizes of (its|the) inputs[\s\S]*pass example_inputs"):
        smodel.calc_params()


class Branching(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if input.sum() > 0 else input


class Scaled(nn.Linear):
    def forward(self, input: Tensor, by: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input) * by


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Branching(4, 4), r"Branching\.forward\(input.*[\s\S]*control flow"),
        (nn.Sequential(Scaled(4, 4)), r"Sequential\.forward\(input.*[\s\S]*by"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(7, 2)), r"on float32 \[2, 7\]|mat1"),
        (Scaled(4, 4), "no layer says which sizes 'by' has"),
    ],
)  # fmt: skip
def test_what_cannot_be_guessed_is_asked_for(model: nn.Module, told: Any) -> None:
    with pytest.raises(SparsebitError, match=told) as caught:
        SparseModel(model, {"SPARSER": HALF})
    assert "example_inputs=(...)" in str(caught.value)
