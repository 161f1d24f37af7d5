"""Captures in several threads, and models that run in others meanwhile."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.capture.exported import program
from sparsebit.graph.capture.recording.patching import announcing_capture
from sparsebit.graph.exclusive import CAPTURING, in_this_thread, replaced, without_warnings


class Waiting(nn.Module):
    """Lets another thread run in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.turns = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        inside.set()
        ran.wait(60)
        return torch.relu(self.linear(y))


inside, ran = threading.Event(), threading.Event()


@pytest.mark.parametrize("frontend", ["record", "symbolic", "exported"])
def test_a_model_runs_in_another_thread_while_one_is_captured(frontend: Any) -> None:
    inside.clear(), ran.clear()
    call, errors, results = nn.Module.__call__, list[BaseException](), list[Tensor]()
    model, other, x = Waiting().eval(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)

    def run() -> None:
        inside.wait(60)
        try:
            results.append(other(x) + torch.zeros(2, 4) + other[0].weight.sum())
        except BaseException as error:
            errors.append(error)
        ran.set()

    thread = threading.Thread(target=run)
    thread.start()
    graph = capture(model, x, frontend=frontend)
    thread.join()
    assert not errors and torch.equal(results[0], other(x) + other[0].weight.sum())
    assert torch.equal(graph(x), model(x)) and nn.Module.__call__ is call


@pytest.mark.parametrize("frontend", ["record", "symbolic", "exported"])
def test_captures_in_several_threads_do_not_disturb_each_other(frontend: Any) -> None:
    call, errors, x = nn.Module.__call__, list[BaseException](), torch.randn(2, 4)

    def go() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
        try:
            assert torch.equal(capture(model, x, frontend=frontend)(x), model(x))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and nn.Module.__call__ is call


@pytest.mark.parametrize("raw", [False, True], ids=["model", "exported program"])
def test_an_exported_program_is_read_while_no_other_thread_exports(
    monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    """torch follows the sizes of every program while one is exported, whichever thread reads them."""
    model, x, free = nn.Linear(4, 4).eval(), torch.randn(2, 4), list[bool]()
    given = torch.export.export(model, (x,)) if raw else model
    read = program._signature

    def ask() -> None:
        free.append(CAPTURING.acquire(blocking=False))

    def watch(*args: Any) -> Any:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return read(*args)

    monkeypatch.setattr(program, "_signature", watch)
    capture(given, () if raw else x, frontend="exported")
    assert free and not any(free)


def test_a_waiting_capture_does_not_keep_the_replacements_of_another() -> None:
    """A second capture that begins while the first one runs finds torch itself, not what the first one put there."""
    started, entered, asked = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        block = announcing_capture()
        started.set()
        with block:
            entered.set()
            asked.wait(60)

    thread = threading.Thread(target=second)
    with announcing_capture():
        thread.start()
        started.wait(60)
        assert not entered.wait(0.1)
        assert torch.compiler.is_compiling()
    assert entered.wait(60)
    ours = torch.compiler.is_compiling()
    asked.set()
    thread.join()
    assert not ours and not torch.compiler.is_compiling()


def test_filters_of_warnings_are_put_back_when_two_threads_set_theirs() -> None:
    """Each of two blocks that overlapped would keep the other's filters, and no warning would be shown any more."""
    before, entered, go_on = list(warnings.filters), threading.Event(), threading.Event()

    def second() -> None:
        with without_warnings():
            entered.set()
            go_on.wait(5)

    thread = threading.Thread(target=second)
    with without_warnings():
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(5)
    go_on.set()
    thread.join()
    assert warnings.filters == before


def test_in_this_thread() -> None:
    ours, answers = in_this_thread(), list[bool]()
    thread = threading.Thread(target=lambda: answers.append(ours()))
    thread.start()
    thread.join()
    assert ours() and answers == [False]


class Loud:
    """Objects of this class do not let their attributes be set."""

    kept = 1

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(name)


def test_replaced_attributes_are_put_back_whatever_happens() -> None:
    one = Loud()
    with pytest.raises(KeyError), replaced((Loud, "kept", 2), (Loud, "added", 3), (one, "own", 4)):
        assert (Loud.kept, Loud.added, one.own) == (2, 3, 4)  # type: ignore[attr-defined]
        raise KeyError
    assert Loud.kept == 1 and not hasattr(Loud, "added") and vars(one) == {}
