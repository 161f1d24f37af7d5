"""Models that several trials share are made once, and a trained one survives the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsebit.batches import Call
from sparsebit.config import load_sconfig
from sparsebit.recipes.candidates import Candidates
from sparsebit.recipes.space import Structure
from tests.recipes.searching import Batches

BY_SIZE = load_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 8}})


def candidates(net: nn.Module, batches: Batches, **more: Any) -> Candidates:
    settings: dict[str, Any] = {"finetune": None, "folder": None, **more}
    return Candidates(
        model=net, batches=batches, example=Call((batches[0][0],)), target="onnxruntime", prune=BY_SIZE,
        ratios=(0.0, 0.5), seed=0, **settings,
    )  # fmt: skip


def test_a_model_is_pruned_once_for_each_ratio(net: nn.Module, batches: Batches) -> None:
    made = candidates(net, batches)
    assert made.pruned(0.0) is net
    small = made.pruned(0.5)
    assert small is made.pruned(0.5)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    assert made.same_as_before(0.5) == ""
    assert made.same_as_before(0.51) == "it prunes no more than 50% does"


def test_a_trained_model_is_kept_in_the_folder(net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    trained: list[nn.Module] = []
    first = candidates(net, batches, finetune=trained.append, folder=tmp_path).pruned(0.5)
    again = candidates(net, batches, finetune=trained.append, folder=tmp_path).pruned(0.5)
    assert len(trained) == 1
    x = batches[0][0]
    assert torch.equal(first(x), again(x))


def test_the_first_config_has_the_bits_of_the_structure(net: nn.Module, batches: Batches) -> None:
    made = candidates(net, batches)
    eight, four = (made.first_config(Structure(ratio=0.0, weights=bits), None) for bits in ("8", "4"))
    assert (eight.W.QUANTIZER.BIT, four.W.QUANTIZER.BIT) == (8, 4)
    assert (eight.BACKEND, four.W.OBSERVER.TYPE) == ("onnxruntime", "mse")
    recipe = made.recipe(Structure(ratio=0.5, weights="4"), four, "named")
    assert recipe.prune is not None and recipe.prune.SPARSER.RATIO == 0.5 and recipe.reestimate
