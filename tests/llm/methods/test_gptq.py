"""GPTQ against the plain form of its paper, and what is done where its second moments are not enough."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.methods.gptq import Gptq, eliminate, factorize, move_target, solve_columns
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.masks import Sparsity
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import Solved, WeightSpec, output_loss
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import CodeType, Grid

SPEC = WeightSpec(code=CodeType("uint", 3), group_size=16)


def problem(seed: int = 0, size: int = 80, tokens: int = 400) -> tuple[torch.Tensor, InputStatistics]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=generator)
    inputs = torch.randn(tokens, size, generator=generator) @ mixing
    statistics = InputStatistics.empty(size, shift=False)
    statistics.update(inputs)
    return torch.randn(24, size, generator=generator), statistics


def damped_gram(gram: torch.Tensor) -> torch.Tensor:
    factor, _ = factorize(gram, 0.01)
    return factor @ factor.T


def loss(solved: Solved, weight: torch.Tensor, statistics: InputStatistics) -> float:
    return output_loss(weight, solved.weight, statistics.mean_gram())


def by_the_paper(weight: torch.Tensor, gram: torch.Tensor, grid: Grid, order: torch.Tensor) -> torch.Tensor:
    """Optimal brain quantization in a fixed order: the inverse is updated column by column, in float64."""
    left, result = weight.double().clone(), torch.zeros_like(weight)
    inverse = torch.linalg.inv(gram.double())
    for index in order.tolist():
        column = torch.zeros_like(weight)
        column[:, index] = left[:, index].float()
        result[:, index] = grid.snap(column)[:, index]
        loss = (left[:, index] - result[:, index]) / inverse[index, index]
        left -= loss[:, None] * inverse[index]
        inverse -= torch.outer(inverse[:, index], inverse[index]) / inverse[index, index]
    return result


@pytest.mark.parametrize("act_order", [False, True])
def test_columns_are_solved_as_in_the_paper(act_order: bool) -> None:
    weight, statistics = problem()
    gram = statistics.mean_gram()
    grid = search_grid(weight, gram.diagonal(), SPEC)
    elimination = eliminate(gram, 0.01, act_order=act_order, sparsity=None)
    columns = solve_columns(weight, elimination, grid)
    found = columns.weight
    damped = damped_gram(gram)
    order = gram.diagonal().argsort(descending=True) if act_order else torch.arange(80)
    wanted = by_the_paper(weight, damped, grid, order)
    assert elimination.damping == 0.01 and columns.kept is None
    assert (found == wanted).float().mean() > 0.999  # the rest are ties of float32
    assert torch.equal(grid.snap(columns.latent), found)


@pytest.mark.parametrize("act_order", [False, True])
def test_the_cost_of_a_column_is_what_the_later_ones_cannot_make_up_for(act_order: bool) -> None:
    _, statistics = problem()
    gram = statistics.mean_gram()
    found = eliminate(gram, 0.01, act_order=act_order, sparsity=None).cost()
    order = gram.diagonal().argsort(descending=True) if act_order else torch.arange(80)
    ordered = damped_gram(gram).double()[order][:, order]
    for place in (0, 40, 79):
        after = ordered[place + 1 :, place + 1 :]
        explained = ordered[place, place + 1 :] @ torch.linalg.solve(after, ordered[place + 1 :, place])
        assert float(found[order[place]]) == pytest.approx(float(ordered[place, place] - explained), rel=1e-2)


@pytest.mark.parametrize("code", ["uint3", "int3_full"])
def test_the_grid_counts_errors_behind_their_correction(code: str) -> None:
    weight, statistics = problem()
    gram, spec = statistics.mean_gram(), WeightSpec(code=CodeType.parse(code), group_size=16)
    elimination = eliminate(gram, 0.01, act_order=True, sparsity=None)
    by_energy = solve_columns(weight, elimination, search_grid(weight, gram.diagonal(), spec)).weight
    solved = Gptq(follow=0.0).solve(weight, statistics, spec)
    assert loss(solved, weight, statistics) < 0.99 * output_loss(weight, by_energy, gram)


def test_it_beats_rounding_to_nearest_on_the_same_grid() -> None:
    weight, statistics = problem()
    solved = Gptq(follow=0.0).solve(weight, statistics, SPEC)
    nearest = Rtn(steps=24).solve(weight, statistics, SPEC)
    assert loss(solved, weight, statistics) < 0.7 * loss(nearest, weight, statistics)
    assert solved.grid is not None and torch.equal(solved.grid.snap(solved.weight), solved.weight)


@pytest.mark.parametrize("code", ["nf4", "fp8_e4m3", "int4_full", "int8"])
def test_it_solves_for_every_type(code: str) -> None:
    weight, statistics = problem()
    spec = WeightSpec(code=CodeType.parse(code), group_size=16)
    solved = Gptq(follow=0.0).solve(weight, statistics, spec)
    nearest = Rtn(steps=24).solve(weight, statistics, spec)
    assert loss(solved, weight, statistics) < loss(nearest, weight, statistics)
    assert solved.grid is not None
    assert torch.allclose(solved.grid.numbers(solved.grid.codes(solved.weight)), solved.weight)


@pytest.mark.parametrize("rows", [5, 20])
def test_the_moved_target_gives_what_the_float_inputs_gave(rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    floats = torch.randn(300, 12, generator=generator)
    inputs = floats @ (torch.eye(12) + 0.1 * torch.randn(12, 12, generator=generator))
    weight = torch.randn(rows, 12, generator=generator)
    moved = move_target(weight, inputs.T @ inputs / 300, (floats - inputs).T @ inputs / 300, 1.0, 1e-9)
    wanted = torch.linalg.lstsq(inputs.double(), (floats @ weight.T).double()).solution.T
    assert torch.allclose(moved.double(), wanted, atol=1e-4)


def test_channels_that_nothing_drives_do_not_break_it() -> None:
    weight, statistics = problem()
    statistics.gram[:, 3] = statistics.gram[3] = 0
    solved = Gptq(follow=0.0).solve(weight, statistics, SPEC)
    assert torch.isfinite(solved.weight).all() and loss(solved, weight, statistics) < 0.1


def test_damping_is_raised_and_said(caplog: pytest.LogCaptureFixture) -> None:
    weight, statistics = problem()
    statistics.gram -= 0.05 * statistics.gram.diagonal().mean() * torch.eye(80)  # no longer positive
    solved = Gptq(follow=0.0).solve(weight, statistics, SPEC)
    assert solved.remark == "damping raised to 0.3: H had no inverse"
    assert "no inverse; damping raised to 0.3" in caplog.text
    with pytest.raises(SparsebitError, match="have no inverse"):
        factorize(-torch.eye(3) + 2 * torch.ones(3, 3), 1e-9)
    assert 1e-3 < factorize(torch.ones(3, 3) - 0.01 * torch.eye(3), 1e-9)[1] < 0.5  # however small it was


def test_without_tokens_it_rounds() -> None:
    weight, _ = problem()
    solved = Gptq(steps=8).solve(weight, None, SPEC)
    assert torch.equal(solved.weight, Rtn(steps=8).solve(weight, None, SPEC).weight)


def sparse_by_the_paper(weight: torch.Tensor, gram: torch.Tensor, kept: int, size: int) -> torch.Tensor:
    """SparseGPT with N:M: at each M columns those go whose loss is least, measured on what is left; float64."""
    left, inverse = weight.double().clone(), torch.linalg.inv(gram.double())
    result = torch.zeros_like(left)
    for index in range(weight.shape[1]):
        if index % size == 0:
            factor = torch.linalg.cholesky(inverse[index:, index:], upper=True).diagonal()[:size]
            scores = (left[:, index : index + size] / factor).square()
            mask = torch.zeros_like(scores).scatter_(1, scores.topk(kept, 1).indices, 1.0)
        result[:, index] = left[:, index] * mask[:, index % size]
        loss = (left[:, index] - result[:, index]) / inverse[index, index]
        left -= loss[:, None] * inverse[index]
        inverse -= torch.outer(inverse[:, index], inverse[index]) / inverse[index, index]
    return result.float()


def test_pruned_columns_are_those_of_sparsegpt() -> None:
    weight, statistics = problem()
    gram = statistics.mean_gram()
    sparsity = Sparsity(0.5, 2, 4)
    found = solve_columns(weight, eliminate(gram, 0.01, act_order=False, sparsity=sparsity), None, sparsity)
    wanted = sparse_by_the_paper(weight, damped_gram(gram), 2, 4)
    assert found.kept is not None and (found.kept == (wanted != 0)).float().mean() > 0.99
    assert (found.weight - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize("asked", ["2:4", 0.5])
def test_pruning_and_rounding_at_once_beats_one_after_the_other(asked: float | str) -> None:
    weight, statistics = problem()
    sparsity = Sparsity.parse(asked)
    spec = WeightSpec(code=CodeType("uint", 4), group_size=16, sparsity=sparsity)
    solved = Gptq(follow=0.0).solve(weight, statistics, spec)
    wanda = Rtn(steps=24).solve(weight, statistics, spec)
    assert loss(solved, weight, statistics) < 0.92 * loss(wanda, weight, statistics)
    assert solved.grid is not None and torch.equal(solved.grid.snap(solved.weight), solved.weight)
    assert solved.kept is not None and not solved.weight[~solved.kept].any()
    assert float(solved.kept.float().mean()) == pytest.approx(0.5, abs=0.02)
    if asked == "2:4":
        assert (solved.kept.reshape(-1, 4).sum(1) == 2).all()
