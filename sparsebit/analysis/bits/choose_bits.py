"""Bits for every tensor under a budget of size, bit operations or measured time, and the curve of optimal choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparsebit.analysis.bits.integer_program import PairCost, Program
from sparsebit.analysis.bits.layer_bits import FLOAT, with_layer_bits
from sparsebit.analysis.bits.sensitivity import Sensitivity
from sparsebit.analysis.pareto_front import pareto_front
from sparsebit.config import QConfig
from sparsebit.display import as_text, in_notebook
from sparsebit.errors import SparsebitError
from sparsebit.runtime.timing import measured_seconds
from sparsebit.storage.typed import to_plain

BudgetKind = Literal["size", "bops", "latency"]
UNIT: Mapping[str, str] = {"size": "bytes", "bops": "bit operations", "latency": "seconds"}
POINTS = 16


@dataclass(frozen=True, kw_only=True)
class BitPoint:
    """One point of the curve: at this cost, no other widths have a smaller error."""

    cost: float
    error: float
    bits: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """Seconds of the complete model, and how much each width of each choice changes them."""

    base: float
    change: Mapping[str, Mapping[int, float]]

    def seconds(self, bits: Mapping[str, int]) -> float:
        """The predicted time of the model with these widths.

        Example:
            >>> LatencyTable(base=1.0, change={"fc": {8: 0.0, 32: 0.5}}).seconds({"fc": 32})
            1.5
        """
        return self.base + sum(self.change[name][width] for name, width in bits.items())


@dataclass(frozen=True, kw_only=True)
class BitChoice:
    """The widths with the smallest error within the budget."""

    kind: BudgetKind
    budget: float
    cost: float
    error: float
    bits: Mapping[str, int]
    size: float
    """Bytes of all parameters."""
    bops: float
    pareto: tuple[BitPoint, ...]
    sensitivity: Sensitivity = field(repr=False)

    _repr_html_ = in_notebook

    @property
    def config(self) -> QConfig:
        """The config that applies it: the one that was measured with, and a rule for every layer."""
        return config_of(self.sensitivity, self.bits)

    @property
    def yaml(self) -> str:
        """The same config as the text of a file."""
        return self.config.to_yaml()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = ("kind", "budget", "cost", "error", "size", "bops", "bits", "pareto", "config")
        return {name: to_plain(getattr(self, name)) for name in names}

    def __rich__(self) -> Group:
        table = Table("tensor", "", "bits", "error", title=f"bits within {self.budget:.6g} {UNIT[self.kind]}")
        for choice in self.sensitivity.choices:
            width = self.bits[choice.name]
            error = f"{self.sensitivity.errors[choice.name][width]:.1e}"
            table.add_row(choice.name, choice.side, "float" if width == FLOAT else str(width), error)
        line = f"{self.cost:.6g} of {self.budget:.6g} {UNIT[self.kind]}; predicted error {self.error:.2e}"
        return Group(table, Text(line))

    __str__ = as_text


def choose_bits(
    found: Sensitivity,
    *,
    size: float | None = None,
    bops: float | None = None,
    latency: float | None = None,
    table: LatencyTable | None = None,
    points: int = POINTS,
) -> BitChoice:
    """Choose the widths with the smallest total error within one budget.

    The result is optimal for the given numbers: errors of single tensors add up, and so do their costs.

    Args:
        found: what ``sensitivity`` measured.
        size: bytes of all parameters: quantized values, scales, and what stays in float.
        bops: bit operations of one call on the example inputs.
        latency: seconds of one call; needs ``table``.
        table: from ``measure_latencies``.
        points: budgets to try for the curve, from the cheapest widths to the widest.

    Raises:
        SparsebitError: if even the narrowest widths cost more, with the difference.
    """
    kind, budget = require_budget(size=size, bops=bops, latency=latency)
    program = make_program(found, kind, table)
    bits = program.solve(budget)
    if bits is None:
        least = program.cost(program.cheapest())
        raise SparsebitError(
            f"no choice of bits fits: the narrowest widths take {least:.6g} {UNIT[kind]}",
            expected=f"at most {budget:.6g} {UNIT[kind]}",
            got=f"{least - budget:.6g} too many ({least / budget - 1:.1%})",
            hint="allow narrower widths or more tensors, or raise the budget",
        )
    return BitChoice(
        kind=kind,
        budget=budget,
        cost=program.cost(bits),
        error=program.error(bits),
        bits=bits,
        size=found.size(bits),
        bops=found.bops(bits),
        pareto=pareto(program, points),
        sensitivity=found,
    )


def require_budget(**given: float | None) -> tuple[BudgetKind, float]:
    """The one budget that was given; an error for none, several, or one that is not a number."""
    asked = [(kind, value) for kind, value in given.items() if value is not None]
    if len(asked) != 1:
        raise SparsebitError(
            "expected exactly one budget", expected="size=, bops= or latency=", got=str(given)
        )
    kind, budget = asked[0]
    if not isinstance(budget, int | float) or not budget > 0:
        raise SparsebitError(f"{kind}: expected a number of {UNIT[kind]}", got=f"{budget!r:.80}")
    return kind, budget  # type: ignore[return-value]


def make_program(found: Sensitivity, kind: BudgetKind, table: LatencyTable | None = None) -> Program:
    """The errors with the costs of one kind of budget."""
    if kind == "size":
        costs = {
            c.name: {width: c.stored_bytes(width) for width in found.errors[c.name]}
            for c in found.choices
            if c.side == "W"
        }
        return Program(errors=found.errors, costs=costs, constant=found.other_bytes)
    if kind == "latency":
        if table is None:
            raise SparsebitError(
                "a latency budget needs measured latencies", hint="pass table=measure_latencies(...)"
            )
        return Program(errors=found.errors, costs=table.change, constant=table.base)
    single: dict[str, dict[int, float]] = {}
    pairs: list[PairCost] = []
    constant = 0.0
    for product in found.products:
        first, second = product.operands
        if first is None and second is None:
            constant += product.macs * product.fixed[0] * product.fixed[1]
        elif first is None or second is None or first == second:
            name = first if first is not None else second
            assert name is not None
            fixed = product.fixed[1] if first is not None else product.fixed[0]
            for width in found.errors[name]:
                other = width if first == second else fixed
                by = single.setdefault(name, {})
                by[width] = by.get(width, 0.0) + product.macs * width * other
        else:
            costs2 = {
                (a, b): float(product.macs * a * b) for a in found.errors[first] for b in found.errors[second]
            }
            pairs.append(PairCost(first=first, second=second, costs=costs2))
    return Program(errors=found.errors, costs=single, pairs=_merged(pairs), constant=constant)


def pareto(program: Program, points: int = POINTS) -> tuple[BitPoint, ...]:
    """Exact optima for budgets between the cheapest widths and those with the smallest error, cheapest first."""
    low = program.cost(program.cheapest())
    best = {name: min(by, key=lambda width: (by[width], width)) for name, by in program.errors.items()}
    high = program.cost(best)
    found: list[BitPoint] = []
    for index in range(points):
        share = index / max(points - 1, 1)
        budget = low * (high / low) ** share if low > 0 and high > low else low + (high - low) * share
        bits = program.solve(budget * (1 + 1e-9) + 1e-12)
        if bits is not None:
            found.append(BitPoint(cost=program.cost(bits), error=program.error(bits), bits=bits))
    return tuple(pareto_front(found, lambda point: (point.cost, point.error)))


def config_of(found: Sensitivity, bits: Mapping[str, int]) -> QConfig:
    """The config that gives these bits to these choices."""
    rules: dict[str, dict[str, int]] = {"W": {}, "A": {}}
    for choice in found.choices:
        for layer in choice.layers:
            rules[choice.side][layer] = bits[choice.name]
    return with_layer_bits(found.config, rules["W"], rules["A"])


def measure_latencies(found: Sensitivity, measure: Callable[[QConfig], float]) -> LatencyTable:
    """Measure the time of the model with each tensor at each width, and everything else as in the config.

    Args:
        found: what ``sensitivity`` measured.
        measure: seconds that the model takes with a config; called once for every tensor and width, and once before.
            ``runtime_latency`` measures one in ONNX Runtime.
    """
    base = measured_seconds(measure, found.config)
    change: dict[str, dict[int, float]] = {}
    for choice in found.choices:
        change[choice.name] = {}
        for width in found.errors[choice.name]:
            names = dict.fromkeys(choice.layers, width)
            config = with_layer_bits(
                found.config, names if choice.side == "W" else None, names if choice.side == "A" else None
            )
            change[choice.name][width] = measured_seconds(measure, config) - base
    return LatencyTable(base=base, change=change)


def _merged(pairs: list[PairCost]) -> list[PairCost]:
    """One product for each pair of choices: a tensor may be multiplied by a weight in several operators."""
    merged: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for pair in pairs:
        costs = merged.setdefault((pair.first, pair.second), {})
        for key, value in pair.costs.items():
            costs[key] = costs.get(key, 0.0) + value
    return [PairCost(first=a, second=b, costs=costs) for (a, b), costs in merged.items()]
