"""Saving and loading: everything comes back, and nothing damaged, changed, newer or foreign is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.errors import SparsebitError
from sparsebit.sparse import SparseModel, load, save
from sparsebit.storage import ArtifactError
from tests.sparse.nets import Residual, images, labels, residual
from tests.storage.artifacts import file_of


def pruned(kind: str = "structured") -> SparseModel:
    config = {
        "SPARSER": {"TYPE": kind, "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1},
        "SCHEDULE": {"TYPE": "iterative", "EVERY": 2, "TIMES": 3},
    }
    smodel = SparseModel(residual(), config, example_inputs=images())
    smodel.step()
    return smodel


@pytest.mark.parametrize("kind", ["structured", "unstructured", "block"])
def test_a_pruning_in_progress_comes_back(kind: str, tmp_path: Path) -> None:
    smodel = pruned(kind)
    smodel.save(tmp_path)
    again = SparseModel.load(tmp_path, residual(seed=7))
    assert torch.equal(again(images()), smodel(images()))
    assert int(again.schedule_step) == 1
    assert again.cfg == smodel.cfg
    for model in (smodel, again):
        model.step(), model.step()
    assert torch.equal(again(images()), smodel(images()))


@pytest.mark.parametrize("shrunk", [False, True])
def test_a_model_that_was_converted_to_half_precision_comes_back(shrunk: bool, tmp_path: Path) -> None:
    model = pruned().shrink() if shrunk else pruned()
    save(model.half(), tmp_path)
    again, x = load(tmp_path, residual(seed=7).half()), images().half()
    assert torch.equal(again(x), model(x))


def test_a_shrunk_and_trained_model_comes_back(tmp_path: Path) -> None:
    small = pruned().shrink()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    functional.cross_entropy(small(images()), labels()).backward()
    optimizer.step()
    save(small, tmp_path)
    again = load(tmp_path, residual(seed=7), images())
    assert torch.equal(again(images()), small(images()))
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"sparsebit.json", "state", "kept"}
    save(again, tmp_path / "twice")
    assert torch.equal(load(tmp_path / "twice", residual())(images()), small(images()))
    with pytest.raises(SparsebitError, match="holds a shrunk model"):
        SparseModel.load(tmp_path, residual())


def test_a_shrunk_model_of_its_own_class(tmp_path: Path) -> None:
    small = pruned().shrink("module")
    assert isinstance(small, Residual)
    save(small, tmp_path)
    again = load(tmp_path, residual(seed=7))
    assert isinstance(again, Residual)
    assert torch.equal(again(images()), small(images()))
    assert not hasattr(again.conv1, "sparser")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.mix(self.table(tokens))))


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    tokens = torch.tensor([[1, 2, 3]])
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l2norm", "RATIO": 0.5}}
    smodel = SparseModel(Tied(), config, example_kwargs={"tokens": tokens})
    smodel.calc_params()
    small = smodel.shrink()
    assert small.head.weight is small.table.weight
    save(small, tmp_path)
    again = load(tmp_path, Tied())
    assert again.head.weight is again.table.weight
    assert torch.equal(again(tokens), small(tokens))


def change_header(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "sparsebit.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def cut(name: str, keep: float = 0.7) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name if name == "sparsebit.json" else file_of(folder, name)
        content = path.read_bytes()
        path.write_bytes(content[: int(keep * len(content))])

    return change


def flip(folder: Path) -> None:
    content = bytearray(file_of(folder, "state").read_bytes())
    content[-1] ^= 1
    file_of(folder, "state").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut("state"), "truncated or was changed"),
        (cut("kept"), "truncated or was changed"),
        (flip, "truncated or was changed"),
        (cut("sparsebit.json"), "cannot be read"),
        (cut("sparsebit.json", 0), "cannot be read"),
        (change_header(version=3), "newer sparsebit"),
        (change_header(kind="quantized model"), "another kind of artifact"),
        (change_header(content={}), "changed after it was saved"),
        (lambda folder: (folder / "sparsebit.json").unlink(), "is not a saved model"),
        (lambda folder: file_of(folder, "state").unlink(), "missing"),
    ],
)
def test_what_is_not_as_it_was_is_refused(damage: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    pruned().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ArtifactError, match=told):
        load(tmp_path, residual())


@pytest.mark.parametrize(
    "other", [nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), Residual(width=32), Residual(inner=16)]
)
def test_another_model_is_refused(other: nn.Module, tmp_path: Path) -> None:
    pruned().save(tmp_path)
    other = other.double().eval()
    with pytest.raises(ArtifactError, match="saved from another model"):
        load(tmp_path, other)


def test_an_ordinary_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="only a SparseModel"):
        save(nn.Linear(2, 2), tmp_path)


def test_a_class_is_no_model_to_load_into(tmp_path: Path) -> None:
    pruned().save(tmp_path)
    with pytest.raises(SparsebitError, match=r"pass an object of the class: Residual\("):
        SparseModel.load(tmp_path, Residual)  # type: ignore[arg-type]


def test_saving_again_replaces(tmp_path: Path) -> None:
    smodel = pruned()
    smodel.save(tmp_path)
    smodel.calc_params()
    smodel.save(tmp_path)
    assert torch.equal(load(tmp_path, residual())(images()), smodel(images()))


def test_example_inputs_that_cannot_be_told_are_asked_for(tmp_path: Path) -> None:
    class Pair(NamedTuple):
        left: Tensor
        right: Tensor

    class Sum(nn.Sequential):
        def forward(self, pair: Pair) -> Tensor:
            return super().forward(pair.left + pair.right)

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Sum(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))

    pair = Pair(torch.ones(1, 4), torch.ones(1, 4))
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l2norm", "RATIO": 0.5}}
    smodel = SparseModel(make(), config, example_inputs=(pair,))
    smodel.calc_params()
    save(smodel.shrink(), tmp_path)
    with pytest.raises(ArtifactError, match=r"a Pair among them[\s\S]*pass example_inputs="):
        load(tmp_path, make())
    assert torch.equal(load(tmp_path, make(), (pair,))(pair), smodel.shrink()(pair))
