"""One width for every choice: the smallest total error under a budget, found exactly by integer programming.

One 0/1 variable for every choice and width; each choice takes exactly one. A cost that is a product of two widths (bit
operations) gets a variable for every pair of them, tied to the single ones, so that the program stays linear.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsebit.errors import missing_package

Widths = Mapping[int, float]  # bits -> error or cost
_TOLERANCE = 1e-6  # of the budget: the solver's tolerance for equality
_SCALE = 1e4  # of the largest error: the solver's absolute tolerance is then 1e-10 of it


@dataclass(frozen=True, kw_only=True)
class PairCost:
    """A cost that depends on the bits of two choices."""

    first: str
    second: str
    costs: Mapping[tuple[int, int], float]


@dataclass(frozen=True, kw_only=True)
class Program:
    """Errors and costs; choices without a cost are omitted from ``costs``."""

    errors: Mapping[str, Widths]
    costs: Mapping[str, Widths] = field(default_factory=dict)
    pairs: Sequence[PairCost] = ()
    constant: float = 0.0

    def cost(self, bits: Mapping[str, int]) -> float:
        """The cost of a choice of widths."""
        single = sum(by[bits[name]] for name, by in self.costs.items())
        return self.constant + single + sum(p.costs[bits[p.first], bits[p.second]] for p in self.pairs)

    def error(self, bits: Mapping[str, int]) -> float:
        """The total error of a choice of widths."""
        return sum(by[bits[name]] for name, by in self.errors.items())

    def solve(self, budget: float) -> dict[str, int] | None:
        """Widths with the smallest error at a cost of at most ``budget``; None if even the cheapest ones cost more.

        The budget is never exceeded. Choices within a millionth of it may be missed.

        Example:
            >>> errors = {"a": {4: 9.0, 8: 1.0}, "b": {4: 2.0, 8: 1.0}}
            >>> Program(errors=errors, costs={"a": {4: 4.0, 8: 8.0}, "b": {4: 4.0, 8: 8.0}}).solve(12)
            {'a': 8, 'b': 4}
        """
        found = self._minimize(self._errors(), budget)
        if found is not None and self.cost(found) > budget:  # by less than the solver's tolerance
            found = self._minimize(self._errors(), budget - _TOLERANCE * max(abs(budget), 1.0))
        if found is not None and self.cost(found) <= budget:
            return found
        cheapest = self.cheapest()
        return cheapest if self.cost(cheapest) <= budget else None

    def cheapest(self) -> dict[str, int]:
        """The widths with the lowest cost."""
        if not self.pairs:
            return {
                name: min(by, key=lambda width: (self.costs.get(name, {}).get(width, 0.0), by[width]))
                for name, by in self.errors.items()
            }
        found = self._minimize(self._costs(), None)
        assert found is not None
        return found

    # -- as matrices --------------------------------------------------------------------------------------------

    def _columns(self) -> list[tuple[Any, ...]]:
        single = [(name, width) for name, by in self.errors.items() for width in by]
        pairs = [(index, *key) for index, pair in enumerate(self.pairs) for key in pair.costs]
        return [*single, *pairs]

    def _errors(self) -> Any:
        return np.array([self.errors[key[0]][key[1]] if len(key) == 2 else 0.0 for key in self._columns()])

    def _costs(self) -> Any:
        return np.array(
            [
                self.costs.get(key[0], {}).get(key[1], 0.0)
                if len(key) == 2
                else self.pairs[key[0]].costs[key[1:]]
                for key in self._columns()
            ]
        )

    def _minimize(self, objective: Any, budget: float | None) -> dict[str, int] | None:
        optimize, sparse = require_scipy()
        columns = self._columns()
        at = {key: index for index, key in enumerate(columns)}
        rows: list[tuple[dict[int, float], float]] = []  # equalities: coefficients, right-hand side
        for name, by in self.errors.items():
            rows.append(({at[name, width]: 1.0 for width in by}, 1.0))
        for index, pair in enumerate(self.pairs):
            for side, name in enumerate((pair.first, pair.second)):
                for width in self.errors[name]:
                    mine = {at[index, *key]: 1.0 for key in pair.costs if key[side] == width}
                    rows.append(({**mine, at[name, width]: -1.0}, 0.0))
        matrix = sparse.lil_array((len(rows), len(columns)))
        for row, (coefficients, _) in enumerate(rows):
            for column, value in coefficients.items():
                matrix[row, column] = value
        wanted = [right for _, right in rows]
        constraints = [optimize.LinearConstraint(matrix.tocsr(), wanted, wanted)]
        if budget is not None:
            costs = self._costs()
            unit = max(float(np.abs(costs).max(initial=0.0)), 1e-300)
            constraints.append(
                optimize.LinearConstraint(costs / unit, -np.inf, (budget - self.constant) / unit)
            )
        largest = max(float(np.abs(objective).max(initial=0.0)), 1e-300)
        with _silenced():
            done = optimize.milp(
                objective / largest * _SCALE,
                constraints=constraints,
                integrality=np.ones(len(columns)),
                bounds=optimize.Bounds(0, 1),
                options={"mip_rel_gap": 0.0},
            )
        if done.x is None:
            return None
        chosen = {
            key[0]: key[1]
            for key, value in zip(columns, done.x, strict=True)
            if len(key) == 2 and value > 0.5
        }
        return {name: chosen[name] for name in self.errors}


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """HiGHS sometimes prints a line from C, even when told not to; a program's standard output may be JSON."""
    sys.stdout.flush()
    try:
        _flush_c()
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            try:
                yield
            finally:
                _flush_c()
                os.dup2(kept, 1)
    finally:
        os.close(kept)


def _flush_c() -> None:
    """Flush C's output buffers, on systems where the C library can be opened without a name."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


def require_scipy() -> tuple[Any, Any]:
    """The solver; if it is missing, an error that says how to install it."""
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise missing_package("scipy", "choosing bits", extra="mixed", error=error) from error
    return optimize, sparse
