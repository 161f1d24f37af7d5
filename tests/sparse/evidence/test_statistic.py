"""Every statistic: streamed or merged, the result is the same; and one from outside, used by a criterion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import PlugInError, RegistryError, SparsebitError
from sparsebit.sparse import SPARSERS, Rows, SparseModel, Sparser, register_sparser, register_statistic
from sparsebit.sparse.evidence.activations import InputProducts
from sparsebit.sparse.evidence.statistic import STATISTICS, States, Statistic


@pytest.mark.parametrize("name", sorted(STATISTICS))
def test_merged_parts_are_the_whole(name: str) -> None:
    statistic = STATISTICS[name]
    parts = [torch.randn(3, 2, 4, 4, dtype=torch.float64) for _ in range(3)]

    a, b, c = map(statistic.measure, parts)
    left, right = statistic.merge(statistic.merge(a, b), c), statistic.merge(a, statistic.merge(b, c))
    torch.testing.assert_close(statistic.finish(left, 3), statistic.finish(right, 3))
    states = States({name: statistic})
    for one in parts:
        states.add(name, "w", one)
    torch.testing.assert_close(states.finish(3)[name]["w"], statistic.finish(left, 3))
    assert type(statistic).__doc__


def test_products_of_inputs() -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    products = InputProducts()
    state = products.merge(products.measure(x[:2].T), products.measure(x[2:].T))
    torch.testing.assert_close(products.finish(state, 2), x.T @ x)


def test_new_evidence_and_its_criterion_are_one_file_outside() -> None:
    @register_statistic("test_peak")
    @dataclass(frozen=True)
    class Peak(Statistic):
        """The largest output of every channel, averaged over the batches."""

        source, per = "output", "output"

        def measure(self, seen: Tensor) -> Tensor:
            return seen.flatten(1).amax(1)

    @register_sparser("test_low_peak")
    @dataclass(frozen=True)
    class LowPeak(Sparser):
        """Channels with low peaks go first."""

        needs = frozenset({"test_peak"})

        def score(self, rows: Rows) -> Tensor:
            return rows.need("test_peak")

    try:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
        x = torch.randn(16, 4)
        config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "test_low_peak", "RATIO": 0.5, "ROUND_TO": 1}}
        smodel = SparseModel(net, config, x[:1])
        smodel.calc_params([x])
        with torch.no_grad():
            peaks = net[:2](x).amax(0)
        assert smodel.kept()["0"].tolist() == (peaks > peaks.sort().values[3]).tolist()
    finally:
        SPARSERS.remove("test_low_peak")
        STATISTICS.remove("test_peak")


@pytest.mark.parametrize(
    ("per", "source", "result"),
    [
        ("weight", "gradient", None),
        ("weight", "gradient", torch.ones(())),
        ("output", "output", torch.ones(3, 2)),
        ("input", "input", torch.ones(4)),
        ("layer", "input", 1.0),
    ],
)
def test_a_result_has_the_shape_it_declares(per: Any, source: Any, result: Any) -> None:
    kind = type("Own", (Statistic,), {"per": per, "source": source})
    kind.measure, kind.finish = lambda self, seen: seen, lambda self, state, batches: result  # type: ignore[attr-defined]
    kind.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    states = States({"own": kind()})
    states.add("own", "conv.weight", torch.ones(3, 2))
    with pytest.raises(SparsebitError, match=f"'own' does not fit per = '{per}'[\\s\\S]*conv.weight"):
        states.finish(1)


@pytest.mark.parametrize("method", ["measure", "merge", "finish"])
def test_mistakes_of_a_statistic_are_reported_as_its_own(method: str) -> None:
    right = {"source": "input", "measure": lambda self, seen: seen}
    states = States({"own": type("Own", (Statistic,), {**right, method: lambda self, *_: 1 / 0})()})
    with pytest.raises(PlugInError, match=r"the statistic 'own' failed on 'conv.weight': ZeroDivisionError"):
        states.add("own", "conv.weight", torch.ones(3, 2))
        states.add("own", "conv.weight", torch.ones(3, 2))
        states.finish(1)


@pytest.mark.parametrize("wrong", [{"source": "grad"}, {"source": "input", "per": "channel"}, {}])
def test_a_misspelt_source_is_refused(wrong: dict[str, str]) -> None:
    kind = type("Own", (Statistic,), {"measure": lambda self, seen: seen, **wrong})
    with pytest.raises(RegistryError, match="of statistic 'own' cannot be"):
        register_statistic("own")(kind)
    assert "own" not in STATISTICS
