"""Steps that are called, and steps that are recorded on a GPU and replayed, do the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.quantization.algorithms.reconstruction import steps
from sparsebit.quantization.algorithms.reconstruction.steps import Schedule, run_steps


def schedule(count: int, device: str = "cpu") -> Schedule:
    betas = [None if index < count // 4 else 20.0 - index for index in range(count)]
    rows = torch.arange(2 * count, device=device).view(count, 2)
    rate = torch.zeros((), device=device) if device == "cuda" else None
    return Schedule(rows, betas, [0.5**index for index in range(count)], rate)


def called(plan: Schedule, noise: Any = None) -> tuple[bool, list[Any], list[float], int]:
    seen: list[Any] = []
    rates: list[float] = []

    def step(rows: Tensor | None, beta: float | Tensor | None) -> bool:
        seen.append((None if rows is None else rows.tolist(), beta))
        return True

    ticks = iter(range(1000))
    done = run_steps(step, plan, rates.append, noise or torch.Generator(), ticks)
    return done, seen, rates, next(ticks)


def test_every_step_has_its_samples_exponent_and_rate() -> None:
    plan = schedule(8)
    done, seen, rates, ticks = called(plan)
    assert done and ticks == 8 and rates == plan.rates
    assert seen == [([2 * index, 2 * index + 1], beta) for index, beta in enumerate(plan.betas)]


def test_it_ends_where_there_is_nothing_to_train() -> None:
    plan, calls = schedule(8), itertools.count()
    assert not run_steps(
        lambda rows, beta: next(calls) < 2, plan, lambda rate: None, torch.Generator(), iter(())
    )
    assert next(calls) == 3


@pytest.mark.gpu
def test_steps_that_cannot_be_recorded_are_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steps, "USE_GRAPHS", True)
    plan, noise = schedule(20, "cuda"), torch.Generator("cuda").manual_seed(0)
    state = torch.zeros(80, device="cuda")

    def step(rows: Tensor | None, beta: float | Tensor | None) -> bool:
        state.add_(torch.empty(80, device="cuda").random_(generator=noise))
        return bool(state[0] > 0)  # the host waits, which cannot be recorded

    assert plan.rate is not None
    with caplog.at_level("WARNING"):
        assert run_steps(step, plan, plan.rate.fill_, noise, iter(()))
    assert "run one by one" in caplog.text
    found = torch.randn(3, device="cuda").sum() + state.sum()  # generators still work
    assert bool(found.isfinite())


@pytest.mark.gpu
def test_recorded_steps_end_where_called_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for recorded in (False, True):
        monkeypatch.setattr(steps, "USE_GRAPHS", recorded)
        plan, noise = schedule(40, "cuda"), torch.Generator("cuda").manual_seed(0)
        assert plan.rate is not None
        state = torch.zeros(80, dtype=torch.float64, device="cuda")

        def step(
            rows: Tensor | None, beta: float | Tensor | None, state: Tensor = state, plan: Schedule = plan,
            noise: torch.Generator = noise,
        ) -> bool:  # fmt: skip
            drawn = torch.empty(80, device="cuda").random_(generator=noise)
            state.add_(drawn * plan.rate).mul_(0.9)
            state.index_add_(0, rows, torch.ones(2, dtype=torch.float64, device="cuda"))
            if beta is not None:
                state.add_(beta)
            return True

        assert run_steps(step, plan, plan.rate.fill_, noise, iter(()))
        found.append(state)
    torch.testing.assert_close(*found)
