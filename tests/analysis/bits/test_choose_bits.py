"""The integer program against every possibility, and the config against what was chosen."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsebit.analysis import (
    FLOAT,
    LatencyTable,
    Sensitivity,
    choose_bits,
    measure_latencies,
    mixed_precision,
    runtime_latency,
    sensitivity,
)
from sparsebit.analysis.bits.choose_bits import config_of, pareto
from sparsebit.analysis.bits.integer_program import PairCost, Program
from sparsebit.config import QConfig
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel, parse_qconfig

FAST = ("W.OBSERVER.TYPE=minmax", "A.OBSERVER.TYPE=minmax")
CONFIG = parse_qconfig("w4a8", ["DEVICE=cpu", "FIRST_LAST=null", *FAST])
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


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)
    ).eval()


@pytest.fixture(scope="module")
def batches() -> list[Tensor]:
    return [torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))]


@pytest.fixture(scope="module")
def found(net: nn.Module, batches: list[Tensor]) -> Sensitivity:
    return sensitivity(
        net, CONFIG, batches, example_inputs=(batches[0],), sides=("W", "A"), bits=(2, 4, 8), progress=False
    )


@pytest.mark.parametrize("kind", ["size", "bops"])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_it_is_never_worse_than_one_width_for_all(found: Sensitivity, kind: str, width: int) -> None:
    same = found.uniform(width)
    budget = getattr(found, kind)(same)
    chosen = choose_bits(found, **{kind: budget})
    assert chosen.cost <= budget and chosen.error <= found.error(same) + 1e-12
    assert getattr(chosen, kind) == pytest.approx(chosen.cost)


def test_the_config_gives_every_tensor_the_bits_that_were_chosen(
    net: nn.Module, batches: list[Tensor], found: Sensitivity
) -> None:
    chosen = choose_bits(found, bops=1.5 * found.bops(found.uniform(4)))
    assert len(set(chosen.bits.values())) > 1
    for config in (chosen.config, parse_qconfig(yaml.safe_load(chosen.yaml))):
        qmodel = QuantModel(net, config, example_inputs=(batches[0],))
        for choice in found.choices:
            assert {qmodel.quantizers[name].bit for name in choice.tensors} == {chosen.bits[choice.name]}


def test_float_leaves_a_tensor_alone(net: nn.Module, batches: list[Tensor]) -> None:
    found = sensitivity(net, CONFIG, batches, example_inputs=(batches[0],), bits=(4, FLOAT), progress=False)
    chosen = choose_bits(found, size=10**9)
    assert set(chosen.bits.values()) == {FLOAT} and chosen.error == 0
    qmodel = QuantModel(net, chosen.config, example_inputs=(batches[0],))
    assert not qmodel.plan.weights()


@pytest.fixture(scope="module")
def all_widths(net: nn.Module, batches: list[Tensor]) -> Sensitivity:
    """Weights and activations of three layers at 2, 4, 8 and 16 bits and in float: 15625 ways to choose."""
    return sensitivity(net, CONFIG, batches, example_inputs=(batches[0],), sides=("W", "A"), progress=False)


@pytest.mark.parametrize("kind", ["size", "bops", "latency"])
def test_on_real_errors_nothing_beats_what_is_chosen_or_any_point_of_the_curve(
    all_widths: Sensitivity, kind: str
) -> None:
    found, chance = all_widths, np.random.default_rng(0)
    change = {name: {w: w * chance.uniform(0.5, 1.5) for w in by} for name, by in found.errors.items()}
    table = LatencyTable(base=100.0, change=change)
    names = list(found.errors)
    options = [dict(zip(names, bits, strict=True)) for bits in itertools.product(*found.errors.values())]
    assert len(options) == 5**6

    def cost(bits: Mapping[str, int]) -> float:
        if kind == "latency":
            return 100.0 + sum(change[name][width] for name, width in bits.items())
        return found.size(bits) if kind == "size" else found.bops(bits)

    costs = np.array([cost(bits) for bits in options])
    errors = np.array([sum(found.errors[n][w] for n, w in bits.items()) for bits in options])
    budget = cost(found.uniform(4))
    chosen = choose_bits(found, **{kind: budget}, table=table if kind == "latency" else None, points=8)  # type: ignore[arg-type]
    assert chosen.cost == pytest.approx(cost(chosen.bits)) and chosen.cost <= budget
    assert chosen.error == pytest.approx(errors[costs <= budget].min(), rel=1e-6)
    assert len(chosen.pareto) > 2
    for point in chosen.pareto:
        assert point.cost == pytest.approx(cost(point.bits))
        assert point.error == pytest.approx(
            errors[costs <= point.cost * (1 + 1e-12)].min(), rel=1e-6, abs=1e-12
        )


def test_a_budget_that_cannot_be_met_is_refused_with_the_shortfall(found: Sensitivity) -> None:
    least = found.size(found.uniform(2))
    with pytest.raises(SparsebitError, match="no choice of bits fits") as refused:
        choose_bits(found, size=least / 2)
    assert "100.0%" in str(refused.value) and f"{least:.6g}" in str(refused.value)
    with pytest.raises(SparsebitError, match="exactly one budget"):
        choose_bits(found, size=1, bops=1)
    with pytest.raises(SparsebitError, match="needs measured times"):
        choose_bits(found, latency=1.0)


def test_measured_time_is_a_budget_too(found: Sensitivity) -> None:
    asked: list[QConfig] = []

    def measure(config: QConfig) -> float:
        """A machine on which the first layer alone gains from fewer bits."""
        asked.append(config)
        return 1.0 + config.spec_for("W", names=["0"], op="conv2d").bits / 8

    table = measure_latencies(found, measure)
    assert len(asked) == 1 + 3 * len(found.choices)
    chosen = choose_bits(found, latency=1.5, table=table)
    assert chosen.bits["0.weight"] == 4
    assert all(width == 8 for name, width in chosen.bits.items() if name != "0.weight")
    assert measure(chosen.config) <= 1.5


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_runtimes_can_be_asked_for_the_time(net: nn.Module, batches: list[Tensor], runtime: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip(runtime)
    qmodel = QuantModel(
        net, parse_qconfig(f"int8_{runtime}", ["DEVICE=cpu", *FAST]), example_inputs=(batches[0],)
    )
    qmodel.calibrate(batches, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert 0 < runtime_latency(qmodel, (batches[0],), runtime=runtime, rounds=3) < 1


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


def test_the_verb_does_all_of_it(net: nn.Module, batches: list[Tensor]) -> None:
    budget = 500.0
    chosen = mixed_precision(
        net, CONFIG, batches, example_inputs=(batches[0],), size=budget, bits=(2, 4, 8), progress=False
    )
    assert chosen.size <= budget and all(choice.side == "W" for choice in chosen.sensitivity.choices)
    assert any(point.cost <= budget for point in chosen.pareto)
    text = json.dumps(chosen.to_dict())
    assert json.loads(text)["config"] == chosen.config.to_dict()
    assert "predicted error" in str(chosen)


def test_without_scipy_it_says_what_to_install(found: Sensitivity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(SparsebitError, match=r"needs the package 'scipy'") as refused:
        choose_bits(found, size=10**6)
    assert '-e ".[mixed]"' in str(refused.value)


def test_config_of_a_uniform_choice_measures_as_one(found: Sensitivity) -> None:
    assert config_of(found, found.uniform(8)).spec_for("W", names=["2"], op="conv2d").bits == 8
