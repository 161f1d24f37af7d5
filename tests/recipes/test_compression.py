"""The search for a recipe: what it tries, when it stops, what it says, and that it goes on after it was killed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.analysis.size import quantized_bytes
from sparsebit.config import load_qconfig
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.recipes import apply_recipe, compress
from sparsebit.recipes.compression import accuracy_on
from tests.recipes.searching import Batches, Net, names
from tests.storage.processes import held_by_another


def test_the_cheapest_recipe_that_is_enough_is_taken(net: nn.Module, batches: Batches) -> None:
    found = compress(net, batches, size=0.4, max_drop=0.1)
    assert found.met and names(found) == ["8-bit weights"] and found.stopped == "the goals are met"
    assert found.measured.bytes == quantized_bytes(found.model) <= 0.4 * found.base.bytes
    assert found.base.bytes == sum(4 * p.numel() for p in net.parameters())
    assert found.require_met() is found and found.limits == ()
    assert "goals met" in str(found)


def test_a_smaller_size_takes_mixed_bits_and_the_yaml_does_it_again(
    net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    found = compress(net, batches, size=0.2, max_drop=0.2, target="virtual")
    assert found.met and found.best.name == "mixed bits within the size"
    assert found.measured.bytes <= 0.2 * found.base.bytes
    assert len({q.bit for q in found.model.quantizers.values() if q.side == "W"}) > 1
    (tmp_path / "recipe.yaml").write_text(found.yaml)
    again = apply_recipe(tmp_path / "recipe.yaml", net, batches, (batches[0][0],))
    assert torch.equal(again(batches[0][0]), found.model(batches[0][0]))


def test_mistakes_are_told_before_any_work(net: nn.Module, batches: Batches) -> None:
    with pytest.raises(SparsebitError, match="no target named 'npu'"):
        compress(net, batches, target="npu")
    with pytest.raises(SparsebitError, match="gave no batch"):
        compress(net, [])
    with pytest.raises(SparsebitError, match="no way to measure a model"):
        compress(net, [batches[0][0]], size=0.3)
    with pytest.raises(
        SparsebitError, match="no runtime is installed that can measure the speed of tensorrt"
    ):
        compress(net, batches, target="tensorrt", speedup=2)
    with pytest.raises(SparsebitError, match="training mode"):
        compress(Net().train(), batches)
    for wrong in ({"max_drop": -1.0}, {"speedup": 0.0}, {"size": -2.0}):
        with pytest.raises(SparsebitError, match=f"{next(iter(wrong))}: expected"):
            compress(net, batches, **wrong)  # type: ignore[arg-type]
    with pytest.raises(
        SparsebitError, match=r"max_drop: accuracy is a number from 0 to 1[^~]*0.05 for five percent"
    ):
        compress(net, batches, max_drop=5)
    for broken in (
        {"time_budget": -1.0},
        {"time_budget": "9"},
        {"ratios": []},
        {"ratios": [0.1, 1.0]},
        {"ratios": 0.5},
        {"seed": "1"},
    ):
        with pytest.raises(SparsebitError, match=f"{next(iter(broken))}: expected"):
            compress(net, batches, **broken)  # type: ignore[arg-type]
    for name in ("latency", "finetune", "on_trial"):
        with pytest.raises(SparsebitError, match=f"{name} is a function"):
            compress(net, batches, **{name: "train"})  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="did not return a time"):
        compress(net, batches, speedup=1.5, latency=lambda model: math.nan)
    with pytest.raises(SparsebitError, match="Flatten has no parameters"):
        compress(nn.Flatten().eval(), batches)


def test_an_error_in_the_users_metric_is_the_users_to_see(net: nn.Module, batches: Batches) -> None:
    def broken(model: nn.Module) -> float:
        if isinstance(model, QuantModel):
            raise ZeroDivisionError("mine")
        return 1.0

    with pytest.raises(ZeroDivisionError, match="mine"):
        compress(net, batches, metric=broken, size=0.5)


def test_the_model_is_left_as_it_was(net: nn.Module, batches: Batches) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    compress(net, batches, size=0.15, max_drop=1.0, ratios=(0.0, 0.5), exhaustive=False)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not net.training and all(p.requires_grad for p in net.parameters())
    assert load_qconfig("int8_onnxruntime").W.QUANTIZER.BIT == 8


class Named(nn.Module):
    """Takes its inputs by name alone, in another order than a batch has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, *, mask: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.second(torch.relu(self.first(ids)) * mask)}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_batches_that_are_dicts_are_judged_and_timed(target: str) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip(target)
    torch.manual_seed(0)
    model = Named().eval()
    inputs = [{"ids": torch.randn(16, 8), "mask": torch.ones(16, 1)} for _ in range(2)]
    labelled = [{**batch, "labels": model(**batch)["logits"].argmax(1)} for batch in inputs]
    found = compress(model, labelled, speedup=1e-6, max_drop=0.2, target=target, ratios=(0.0,))
    assert found.base.metric == 1.0 and found.met
    assert found.base.seconds and found.measured.seconds


def test_accuracy_is_the_part_that_is_right() -> None:
    data = [(torch.eye(4), torch.tensor([0, 1, 2, 0])), (torch.eye(4), torch.tensor([0, 1, 2, 3]))]
    metric = accuracy_on(data, ((torch.eye(4),), {}))
    assert metric(nn.Identity()) == 7 / 8
    with pytest.raises(Exception, match="one row of class scores"):
        metric(nn.Flatten(0))


def test_what_is_not_a_model_is_refused(net: nn.Module, batches: Batches) -> None:
    with pytest.raises(SparsebitError, match=r"only a torch.nn.Module(.|\n)*got: *a list"):
        compress(batches, net)  # type: ignore[arg-type]


def test_the_random_numbers_of_others_go_on_as_if_there_had_been_no_search(
    net: nn.Module, batches: Batches
) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    compress(net, batches, size=0.4, max_drop=0.1, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_a_second_search_in_the_same_folder_is_refused(
    net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    with held_by_another(tmp_path), pytest.raises(SparsebitError, match="another run is working in"):
        compress(net, batches, size=0.4, max_drop=0.1, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("accuracy", "metric is a function"),
        (lambda outputs, labels: 1.0, "metric is a function from a model to a number"),
        (lambda model: None, "the metric did not return a number"),
    ],
)
def test_a_metric_is_a_function_that_returns_a_number(metric: Any, text: str) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(SparsebitError, match=text):
        compress(nn.Linear(3, 2).eval(), [(x, torch.zeros(4, dtype=torch.int64))], size=0.5, metric=metric)
