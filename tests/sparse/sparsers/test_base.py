"""Criteria: each against its equation written as loops, and all of them against what every criterion must do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.config.pruning.criteria import SPARSER_RULES
from sparsebit.errors import ConfigError, PlugInError, RegistryError
from sparsebit.sparse.evidence.statistic import STATISTICS
from sparsebit.sparse.sparsers import (
    SPARSERS,
    Rows,
    Sparser,
    make_sparser,
    register_sparser,
)

PER_ROW = ("gradient", "gradient_square", "hessian_weight", "hessian_diagonal", "input_norm")


def make_rows(count: int = 6, width: int = 5, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    fields = {name: draw(count, width) for name in PER_ROW}
    fields["gradient_square"] = fields["gradient_square"].square()
    fields["input_norm"] = fields["input_norm"].abs()
    weight = draw(count, width)
    return Rows(name="w", weight=weight, evidence={**fields, "feature_rank": draw(count).abs()})


def by_loops(count: Callable[[list[float], int, Rows], float]) -> Callable[[Rows], list[float]]:
    return lambda rows: [count(row, index, rows) for index, row in enumerate(rows.weight.tolist())]


def pairs(rows: Rows, index: int, name: str) -> Iterator[tuple[float, float]]:
    return zip(rows.weight[index].tolist(), rows.need(name)[index].tolist(), strict=True)


def lamp(rows: Rows) -> list[float]:
    squares = [sum(w * w for w in row) for row in rows.weight.tolist()]
    return [one / sum(other for other in squares if other >= one) for one in squares]


REFERENCES: dict[str, Callable[[Rows], list[float]]] = {
    "l0norm": by_loops(lambda row, i, r: sum(abs(w) > 1e-3 for w in row)),
    "l1norm": by_loops(lambda row, i, r: sum(map(abs, row))),
    "l2norm": by_loops(lambda row, i, r: math.sqrt(sum(w * w for w in row))),
    "slimming": by_loops(lambda row, i, r: sum(map(abs, row))),
    "fisher": by_loops(lambda row, i, r: sum(w * w * g2 for w, g2 in pairs(r, i, "gradient_square")) / 2),
    "taylor": by_loops(lambda row, i, r: sum(w * g for w, g in pairs(r, i, "gradient")) ** 2),
    "taylor2": by_loops(
        lambda row, i, r: (
            (
                sum(w * g for w, g in pairs(r, i, "gradient"))
                - 0.5 * sum(w * h for w, h in pairs(r, i, "hessian_weight"))
            )
            ** 2
        )
    ),
    "gradient_weight": by_loops(lambda row, i, r: sum(abs(w * g) for w, g in pairs(r, i, "gradient"))),
    "hessian": by_loops(
        lambda row, i, r: sum(abs(h) * w * w for w, h in pairs(r, i, "hessian_diagonal")) / 2
    ),
    "activation_norm": by_loops(lambda row, i, r: sum(abs(w) * n for w, n in pairs(r, i, "input_norm"))),
    "fpgm": by_loops(lambda row, i, r: sum(math.dist(row, other) for other in r.weight.tolist())),
    "lamp": lamp,
    "hrank": lambda rows: rows.need("feature_rank").tolist(),
}


@pytest.mark.parametrize("name", sorted(REFERENCES))
@given(count=st.integers(1, 8), width=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_scores_are_those_of_the_equation(name: str, count: int, width: int, seed: int) -> None:
    rows = make_rows(count, width, seed)
    expected = torch.tensor(REFERENCES[name](rows), dtype=torch.float64)
    torch.testing.assert_close(make_sparser(name).score(rows), expected, rtol=1e-12, atol=1e-12)


def test_every_criterion_has_a_reference() -> None:
    assert set(REFERENCES) | {"random"} == set(SPARSERS)


@pytest.mark.parametrize("name", sorted(SPARSERS))
def test_a_criterion_is_what_it_says(name: str) -> None:
    sparser = make_sparser(name)
    assert sparser.needs <= set(STATISTICS)
    assert type(sparser).__doc__
    scores = sparser.score(make_rows())
    assert scores.shape == (6,)
    assert scores.isfinite().all()
    assert (scores >= 0).all()
    assert torch.equal(scores, sparser.score(make_rows()))  # nothing is drawn anew
    rule = SPARSER_RULES[name]
    assert rule.option_names == tuple(type(sparser).__dataclass_fields__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(SPARSERS))
def test_rows_are_scored_wherever_they_stand(name: str) -> None:
    rows, order = make_rows(), torch.tensor([3, 0, 5, 1, 4, 2])
    if name == "random":
        return
    moved = Rows(
        name="w",
        weight=rows.weight[order],
        evidence={name: found[order] for name, found in rows.evidence.items()},
    )
    sparser = make_sparser(name)
    torch.testing.assert_close(sparser.score(moved), sparser.score(rows)[order])


def test_the_criteria_really_differ() -> None:
    rows = make_rows(32, 16)
    orders = {name: tuple(make_sparser(name).score(rows).argsort().tolist()) for name in SPARSERS}
    # The same inside one tensor: they differ in what they look at.
    same = {"l2norm": "lamp", "l1norm": "slimming"}
    for one in orders:
        for other in orders:
            if one != other and same.get(one) != other and same.get(other) != one:
                assert orders[one] != orders[other], (one, other)


def test_a_criterion_of_ones_own() -> None:
    @register_sparser("test_first", types=("structured",), because="it looks at the first weight")
    @dataclass(frozen=True)
    class First(Sparser):
        """The first weight."""

        factor: float = 1.0

        def score(self, rows: Rows) -> Tensor:
            return self.factor * rows.weight[:, 0].abs()

    try:
        assert SPARSER_RULES["test_first"].option_names == ("factor",)
        assert torch.equal(
            make_sparser("test_first", {"factor": 2.0}).score(make_rows()), 2 * make_rows().weight[:, 0].abs()
        )
        with pytest.raises(RegistryError, match="already taken"):
            register_sparser("test_first")(First)
        with pytest.raises(PlugInError, match="the pruning criterion 'test_first' cannot be made: TypeError"):
            make_sparser("test_first", {"facter": 2.0})
    finally:
        SPARSERS.remove("test_first")


def test_without_a_name_the_class_must_have_one() -> None:
    class Nameless(Sparser):
        def score(self, rows: Rows) -> Tensor:
            return rows.weight[:, 0]

    with pytest.raises(
        RegistryError, match=r"(?s)Nameless has no name to register it under.*@register_sparser"
    ):
        register_sparser(Nameless)
    for types in (("strctured",), "structured", ()):
        with pytest.raises(RegistryError, match="are not kinds of sparsity"):
            register_sparser("nameless", types=types)(Nameless)  # type: ignore[arg-type]

    class Named(Nameless):
        TYPE = "test_named"

    try:
        assert register_sparser(Named) is Named
        assert SPARSERS["test_named"] is Named and SPARSER_RULES["test_named"].option_names == ()
    finally:
        SPARSERS.remove("test_named")


def test_wrong_options_are_told() -> None:
    with pytest.raises(ConfigError, match="samples cannot be used"):
        make_sparser("hessian", {"samples": 0})
    with pytest.raises(RegistryError, match="did you mean 'taylor'"):
        make_sparser("tailor")
