"""``len`` of a tensor in a module's own forward, and nobody else's."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.capture.recording.size_len import following_len

COUNT = 0


class Counts(nn.Module):
    def forward(self, x: Tensor, *, names: tuple[str, ...] = ("a", "b")) -> Any:
        return len(x), [len(row) for row in (x, [1, 2])], len(names)


class WritesGlobals(nn.Module):
    def forward(self, x: Tensor) -> int:
        global COUNT
        COUNT = len(x)
        return COUNT


def test_len_of_tensors_is_asked_for_and_that_of_others_is_not() -> None:
    model = nn.ModuleList([Counts()])
    with following_len(model, lambda tensor: 100):
        assert model[0](torch.ones(3)) == (100, [100, 2], 2)
        assert len(torch.ones(3)) == 3, "names of this file are as they were"
    assert model[0](torch.ones(3)) == (3, [3, 2], 2) and "forward" not in vars(model[0])


def test_a_forward_that_writes_global_names_runs_as_it_is() -> None:
    model = WritesGlobals()
    with following_len(model, lambda tensor: 100):
        assert model(torch.ones(3)) == 3 and COUNT == 3


def test_an_error_leaves_nothing_behind() -> None:
    model = Counts()
    try:
        with following_len(model, lambda tensor: 100):
            raise KeyError
    except KeyError:
        assert "forward" not in vars(model)


def test_another_thread_counts_as_ever_while_a_model_is_recorded() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(type(len(torch.ones(3)))))
            thread.start()
            thread.join()
            assert found == [int]
            return x.reshape(len(x), -1)

    assert capture(Asks(), torch.ones(2, 2, 2))(torch.ones(5, 2, 2)).shape == (5, 4)
