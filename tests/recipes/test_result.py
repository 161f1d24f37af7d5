"""What a search hands back, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from sparsebit.quantization import QuantModel
from sparsebit.recipes import apply_recipe, compress
from sparsebit.sparse import load as load_pruned
from tests.recipes.searching import Batches


def test_the_folder_holds_all_of_it(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    found = compress(net, batches, size=0.15, max_drop=1.0, ratios=(0.5,), folder=tmp_path)
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["met"] is True and data["best"]["name"] == found.best.name
    small = load_pruned(tmp_path / "pruned", net)
    loaded = QuantModel.load(tmp_path / "quantized", small)
    assert torch.equal(loaded(batches[0][0]), found.model(batches[0][0]))
    again = apply_recipe(tmp_path / "recipe.yaml", net, batches, (batches[0][0],))
    assert torch.equal(again(batches[0][0]), found.model(batches[0][0]))
