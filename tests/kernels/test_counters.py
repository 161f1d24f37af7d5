"""Zeros that kernels count in."""

from __future__ import annotations

import threading
import weakref

import pytest
import torch

from sparsebit.kernels.counters import _Counters, take_counters


def test_a_call_gets_as_many_zeros_as_it_asks_for_from_memory_that_is_used_again() -> None:
    first, second = (take_counters(torch.device("cpu"), 10) for _ in range(2))
    assert first.data_ptr() == second.data_ptr() and first.dtype == torch.int32
    many = take_counters(torch.device("cpu"), len(first) + 1)
    assert len(many) > len(first) and not many.any()


def test_counters_that_became_too_few_are_not_given_back() -> None:
    """The allocator would hand them out again on its own stream, while a kernel on another one counts in them."""
    counters = _Counters(torch.device("cpu"))
    first = weakref.ref(counters.take(4))
    counters.take(10_000)
    assert first() is not None


def test_what_is_kept_does_not_come_from_this_threads_memory_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    makers, zeros = [], torch.zeros
    monkeypatch.setattr(
        torch, "zeros", lambda *a, **k: makers.append(threading.get_ident()) or zeros(*a, **k)
    )
    _Counters(torch.device("cpu")).take(10)
    assert len(makers) == 2 and threading.get_ident() not in makers
