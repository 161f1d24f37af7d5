"""States of several processes become the state of one that saw all the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization.observers import OBSERVERS, across_processes, merge_across_processes
from tests.quantization.observers.data import draw, feed

every_observer = pytest.mark.parametrize("name", sorted(OBSERVERS))


def rows(rank: int) -> list[Tensor]:
    """Data of very different size, so that histograms must grow to meet; more of it on later ranks."""
    x = draw("laplace", 3000 * (rank + 1), seed=rank).view(3, -1) * 10.0**rank
    return list(x.split(700, dim=1))


def merge_as(
    rank: int, states: list[Any], observer: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, ...] | None:
    """What one rank finds, where what the others send is known; real processes are in calibration/test_ranks.py."""
    monkeypatch.setattr(across_processes, "is_distributed", lambda: True)
    shapes = [None if one is None else [(tuple(f.shape), f.dtype) for f in one] for one in states]
    monkeypatch.setattr(across_processes, "gather_values", lambda value: shapes)
    fields: Iterator[int] = iter(range(100))

    def gather(own: Tensor) -> list[Tensor]:
        field = next(fields)
        return [own if one is None else one[field] for one in states]

    monkeypatch.setattr(across_processes, "gather_tensor", gather)
    return merge_across_processes(observer, states[rank])


@every_observer
def test_merged_states_are_those_of_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = OBSERVERS[name]()
    rtol = 1e-5 if observer.by_sample else 0
    states = [feed(observer, rows(rank)) for rank in range(3)]
    everything = feed(observer, [batch for rank in range(3) for batch in rows(rank)])
    for rank in range(3):
        merged = merge_as(rank, states, observer, monkeypatch)
        torch.testing.assert_close(merged, everything, rtol=rtol, atol=0)
        alone = merge_as(rank, [None, states[1], None], observer, monkeypatch)  # the others saw no data
        torch.testing.assert_close(alone, states[1], rtol=rtol, atol=0)
        assert merge_as(rank, [None] * 3, observer, monkeypatch) is None


def test_tensors_that_differ_between_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = OBSERVERS["minmax"]()
    states = [observer.init(torch.empty(channels, 1)) for channels in (3, 4)]
    with pytest.raises(SparsebitError, match="have measured tensors of different shapes or types"):
        merge_as(0, states, observer, monkeypatch)


@every_observer
def test_one_process_has_its_own_state(name: str) -> None:
    observer = OBSERVERS[name]()
    state = feed(observer, rows(0))
    assert merge_across_processes(observer, state) is state
    assert merge_across_processes(observer, None) is None
