"""The integer program against every possibility, and the config against what was chosen."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import yaml
from torch import Tensor, nn

from sparsebit.analysis import (
    FLOAT,
    LatencyTable,
    Sensitivity,
    choose_bits,
    measure_latencies,
    sensitivity,
)
from sparsebit.analysis.bits.choose_bits import config_of
from sparsebit.config import QConfig
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel, parse_qconfig
from tests.analysis.chain import CONFIG


@pytest.fixture(scope="module")
def found(chain: nn.Module, images: list[Tensor]) -> Sensitivity:
    return sensitivity(
        chain, CONFIG, images, example_inputs=(images[0],), sides=("W", "A"), bits=(2, 4, 8), progress=False
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
    chain: nn.Module, images: list[Tensor], found: Sensitivity
) -> None:
    chosen = choose_bits(found, bops=1.5 * found.bops(found.uniform(4)))
    assert len(set(chosen.bits.values())) > 1
    for config in (chosen.config, parse_qconfig(yaml.safe_load(chosen.yaml))):
        qmodel = QuantModel(chain, config, example_inputs=(images[0],))
        for choice in found.choices:
            assert {qmodel.quantizers[name].bit for name in choice.tensors} == {chosen.bits[choice.name]}


def test_float_leaves_a_tensor_alone(chain: nn.Module, images: list[Tensor]) -> None:
    found = sensitivity(chain, CONFIG, images, example_inputs=(images[0],), bits=(4, FLOAT), progress=False)
    chosen = choose_bits(found, size=10**9)
    assert set(chosen.bits.values()) == {FLOAT} and chosen.error == 0
    qmodel = QuantModel(chain, chosen.config, example_inputs=(images[0],))
    assert not qmodel.plan.weights()


@pytest.fixture(scope="module")
def all_widths(chain: nn.Module, images: list[Tensor]) -> Sensitivity:
    """Weights and activations of three layers at 2, 4, 8 and 16 bits and in float: 15625 ways to choose."""
    return sensitivity(chain, CONFIG, images, example_inputs=(images[0],), sides=("W", "A"), progress=False)


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
    for wrong in ("5k", -1.0, float("nan")):
        with pytest.raises(SparsebitError, match="size: expected a number of bytes"):
            choose_bits(found, size=wrong)  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="needs measured latencies"):
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


def test_without_scipy_it_says_what_to_install(found: Sensitivity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(SparsebitError, match=r"needs the package 'scipy'") as refused:
        choose_bits(found, size=10**6)
    assert '-e ".[mixed]"' in str(refused.value)


def test_config_of_a_uniform_choice_measures_as_one(found: Sensitivity) -> None:
    assert config_of(found, found.uniform(8)).spec_for("W", names=["2"], op="conv2d").bits == 8
