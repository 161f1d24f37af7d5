"""Scores of units, weights and blocks against loops over what each of them owns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit.errors import PlugInError, SparsebitError
from sparsebit.sparse.channels.group import Group, Slice
from sparsebit.sparse.choose.masks import MatrixBlocks
from sparsebit.sparse.choose.scores import score_blocks, score_group, score_weights
from sparsebit.sparse.sparsers import Rows, Sparser, make_sparser

TENSORS = {
    "a.weight": torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    "b.weight": torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),
    "bn.weight": torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
}


def at(tensor: str, unit: list[int], role: str = "output") -> Slice:
    return Slice(tensor, 0, torch.arange(len(unit)), torch.tensor(unit), role)  # type: ignore[arg-type]


def group(*slices: Slice) -> Group:
    return Group("g", 4, None, slices, ("a",), ())


@pytest.mark.parametrize("how", ["auto", "mean", "max", "sum", "first"])
def test_coupled_layers_become_one_score(how: str) -> None:
    # unit 3 owns three rows of b, unit 0 none
    found = score_group(
        group(at("a.weight", [0, 1, 2, 3]), at("b.weight", [3, 1, 3, 2, 1, 3])),
        make_sparser("l1norm"), TENSORS, {}, how,
    )  # fmt: skip
    first = TENSORS["a.weight"].abs().sum(1)
    second = torch.zeros(4, dtype=torch.float64)
    for row, unit in enumerate([3, 1, 3, 2, 1, 3]):
        second[unit] += TENSORS["b.weight"][row].abs().sum()
    expected = {"sum": first + second, "max": torch.maximum(first, second), "first": first}
    mean = (first + second) / 2
    mean[0] = first[0]
    torch.testing.assert_close(found, expected.get(how, mean))


def test_a_joint_criterion_sees_everything_a_unit_owns() -> None:
    gradient = {name: torch.randn_like(tensor) for name, tensor in TENSORS.items()}
    both = group(at("a.weight", [0, 1, 2, 3]), at("b.weight", [0, 1, 2, 3, 0, 1]))
    found = score_group(both, make_sparser("taylor"), TENSORS, {"gradient": gradient}, "auto")
    sums = (TENSORS["a.weight"] * gradient["a.weight"]).sum(1)
    for row, unit in enumerate([0, 1, 2, 3, 0, 1]):
        sums[unit] += (TENSORS["b.weight"] * gradient["b.weight"])[row].sum()
    torch.testing.assert_close(found, sums.square())


def test_a_batch_norm_stands_for_what_is_before_it() -> None:
    gradient = {name: torch.randn_like(tensor) for name, tensor in TENSORS.items()}
    normed = group(at("a.weight", [0, 1, 2, 3]), at("bn.weight", [0, 1, 2, 3], "scale"))
    found = score_group(
        normed, make_sparser("taylor"), TENSORS, {"gradient": gradient}, "auto", gates={"bn.weight"}
    )
    torch.testing.assert_close(found, (TENSORS["bn.weight"] * gradient["bn.weight"]).square())


def test_slimming_looks_at_scales_and_says_when_there_are_none() -> None:
    normed = group(at("a.weight", [0, 1, 2, 3]), at("bn.weight", [0, 1, 2, 3], "scale"))
    found = score_group(normed, make_sparser("slimming"), TENSORS, {}, "auto")
    torch.testing.assert_close(found, TENSORS["bn.weight"].abs())
    assert (
        score_group(group(at("a.weight", [0, 1, 2, 3])), make_sparser("slimming"), TENSORS, {}, "auto")
        is None
    )


def test_ranks_are_those_of_the_rows() -> None:
    evidence = {"feature_rank": {"b.weight": torch.arange(6.0)}}
    found = score_group(
        group(at("b.weight", [3, 1, 3, 2, 1, 3])),
        make_sparser("hrank"),
        TENSORS,
        evidence,
        "auto",  # type: ignore[arg-type]
    )
    assert found is not None
    torch.testing.assert_close(
        found, torch.tensor([0, 2.5, 3, 7 / 3], dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_single_weights_and_blocks() -> None:
    weight = TENSORS["a.weight"]
    assert torch.equal(score_weights("a.weight", weight, make_sparser("l1norm"), {}), weight.abs())
    blocks = MatrixBlocks((4, 3), (0, 1), (2, 2))
    found = score_blocks("a.weight", weight, blocks, make_sparser("l1norm"), {})
    assert found.shape == (4,)
    assert found[0] == weight[:2, :2].abs().sum()
    assert found[1] == 2 * weight[:2, 2:].abs().sum()  # cut off at the edge: counted as if it went on alike


def test_half_precision_is_scored_in_float() -> None:
    weight = torch.full((2, 3), 300.0, dtype=torch.float16)
    assert score_weights("w", weight, make_sparser("l2norm"), {}).dtype == torch.float32


@pytest.mark.parametrize(
    "wrong", [None, 1.0, [1.0, 2.0], torch.ones(()), torch.ones(3), torch.ones(2, 3), torch.ones(2) + 1j]
)
def test_a_criterion_returns_a_score_for_each_row(wrong: Any) -> None:
    class Wrong(Sparser):
        def score(self, rows: Rows) -> torch.Tensor:
            return wrong  # type: ignore[no-any-return]

    where, tensors = group(at("w", [0, 1])), {"w": torch.ones(2, 1)}
    for find in (
        lambda: score_group(where, Wrong(), tensors, {}, "auto"),
        lambda: score_weights("w", tensors["w"], Wrong(), {}),
    ):
        with pytest.raises(SparsebitError, match=r"Wrong did not return one score for each row[\s\S]*\[2\]"):
            find()


def test_a_criterion_that_fails_or_writes_into_the_weights_is_named() -> None:
    class Fails(Sparser):
        def score(self, rows: Rows) -> torch.Tensor:
            return len(3)  # type: ignore[arg-type,return-value]

    class Writes(Sparser):
        def score(self, rows: Rows) -> torch.Tensor:
            return rows.weight.abs_().sum(1)

    for wrong, told in (
        (Fails(), "Fails failed on 'w': TypeError"),
        (Writes(), "Writes failed on 'w': it wrote into"),
    ):
        with pytest.raises(PlugInError, match=f"the criterion .*{told}"):
            score_weights("w", torch.ones(2, 2), wrong, {})


def test_scores_may_be_whole_numbers() -> None:
    class Order(Sparser):
        def score(self, rows: Rows) -> torch.Tensor:
            return torch.arange(len(rows.weight))

    assert score_weights("w", torch.ones(2, 2), Order(), {}).tolist() == [[0.0, 1.0], [2.0, 3.0]]
