"""HQQ: against the same updates written as loops, and better than min-max where there are outliers."""

from __future__ import annotations

import math

import pytest
import torch

from sparsebit.llm.methods.hqq import Hqq
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.numerics import CodeType


def by_hand(weights: list[float], bits: int, rounds: int, norm: float) -> tuple[float, int]:
    """One group in float64: scale and zero point, the best of all rounds."""
    high = 2**bits - 1
    low_end, high_end = min(*weights, 0.0), max(*weights, 0.0)
    scale = (high_end - low_end) / high
    zero = round(-low_end / scale)
    beta, best, lowest = 10.0, (scale, zero), math.inf

    def values() -> list[int]:
        return [min(max(round(w / scale) + zero, 0), high) for w in weights]

    for turn in range(rounds + 1):
        q = values()
        cost = sum(abs(w - (v - zero) * scale) ** norm for w, v in zip(weights, q, strict=True))
        if cost < lowest:
            best, lowest = (scale, zero), cost
        if turn == rounds:
            return best
        wanted = []
        for w, v in zip(weights, q, strict=True):
            error = w / scale - (v - zero)
            size = max(abs(error) - max(abs(error), 1e-8) ** (norm - 1) / beta, 0.0)
            wanted.append(w / scale - math.copysign(size, error))
        new = round(sum(v - t for v, t in zip(q, wanted, strict=True)) / len(q))
        new = min(max(new, 0), high)
        scale *= sum((v - new) * t for v, t in zip(q, wanted, strict=True)) / sum((v - new) ** 2 for v in q)
        zero, beta = new, beta * 1.01
    raise AssertionError


def test_it_is_what_the_loops_give() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 32).double()
    spec = WeightSpec(code=CodeType("uint", 3), group_size=16, scale_dtype=torch.float32)
    solved = Hqq(rounds=5).solve(weight, None, spec)
    assert solved.grid is not None
    wanted = [by_hand(row, 3, 5, 0.7) for row in weight.float().double().reshape(-1, 16).tolist()]
    assert torch.allclose(solved.grid.scale, torch.tensor([scale for scale, _ in wanted]), rtol=1e-4)
    assert solved.grid.zero_point.tolist() == [zero for _, zero in wanted]


@pytest.mark.parametrize("code", ["uint4", "int3_full", "nf4"])
def test_outliers_do_not_set_the_range(code: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 64)
    weight[:, ::16] *= 6
    spec = WeightSpec(code=CodeType.parse(code), group_size=64)
    errors = [(one.solve(weight, None, spec).weight - weight).abs().pow(0.7).sum() for one in (Hqq(), Rtn())]
    assert errors[0] < 0.99 * errors[1]
