"""The integer program against every possibility."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsebit.analysis.bits.choose_bits import pareto
from sparsebit.analysis.bits.integer_program import PairCost, Program

NUMBER = st.floats(0, 1, width=32)


def everything(program: Program) -> list[dict[str, int]]:
    names = list(program.errors)
    return [dict(zip(names, bits, strict=True)) for bits in itertools.product(*program.errors.values())]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    widths = draw(st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3, unique=True))
    names = [f"t{index}" for index in range(draw(st.integers(1, 4)))]
    table = st.fixed_dictionaries({width: NUMBER for width in widths})
    errors = {name: draw(table) for name in names}
    costs = {name: draw(table) for name in names}
    pairs = []
    if len(names) > 1 and draw(st.booleans()):
        keys = list(itertools.product(widths, widths))
        pairs.append(PairCost(first="t0", second="t1", costs={key: draw(NUMBER) for key in keys}))
    return Program(errors=errors, costs=costs, pairs=pairs, constant=draw(NUMBER))


@settings(max_examples=40, deadline=None)
@given(programs(), NUMBER)
def test_no_other_widths_lose_less_within_the_budget(program: Program, share: float) -> None:
    options = everything(program)
    costs = sorted(program.cost(bits) for bits in options)
    budget = costs[0] + share * (costs[-1] - costs[0])
    found = program.solve(budget)
    allowed = [bits for bits in options if program.cost(bits) <= budget]
    assert found is not None and program.cost(found) <= budget
    # The solver may leave out what fits to the last digit only.
    safely = [program.error(b) for b in options if program.cost(b) <= budget - 1e-5]
    assert program.error(found) >= min(program.error(bits) for bits in allowed) - 1e-9
    assert not safely or program.error(found) <= min(safely) + 1e-6
    assert program.cost(program.cheapest()) == pytest.approx(costs[0], abs=1e-5)


@settings(max_examples=15, deadline=None)
@given(programs())
def test_the_curve_falls_and_nothing_lies_under_it(program: Program) -> None:
    points = pareto(program, 6)
    assert points
    for a, b in itertools.pairwise(points):
        assert a.cost < b.cost and a.error > b.error
    for bits in everything(program):
        for point in points:
            beaten = program.cost(bits) < point.cost - 1e-4 and program.error(bits) < point.error - 1e-4
            assert not beaten


def test_the_solver_does_not_print(capfd: pytest.CaptureFixture[str]) -> None:
    """Its own line would end up in whatever a program writes to its standard output."""
    random, widths = np.random.default_rng(0), (2, 3, 4, 5, 6, 8, 16, 32)
    for _ in range(8):
        names = [f"t{index}" for index in range(int(random.integers(5, 30)))]
        elements = {name: int(random.choice([432, 2304, 9216, 36864])) for name in names}
        weight = {name: float(10 ** random.uniform(-2, 0)) for name in names}
        errors = {
            name: {w: weight[name] * 4.0**-w * float(random.uniform(0.7, 1.3)) for w in widths}
            for name in names
        }
        costs = {name: {w: elements[name] * w / 8 + 64 for w in widths} for name in names}
        program = Program(errors=errors, costs=costs)
        for width in (3, 4, 5):
            assert program.solve(program.cost(dict.fromkeys(names, width))) is not None
    print("mine")
    assert capfd.readouterr().out == "mine\n"
