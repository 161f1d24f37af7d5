"""Sessions in a child process: a runtime that ends its process is an error, and the next session works."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparsebit.runtime import SessionError, isolation, open_session
from sparsebit.runtime.isolation import start_child
from tests.runtime.aborting import aborting_runtime, no_child
from tests.runtime.test_session import model

FEED = {"x": np.ones((2, 3), np.float32), "y": np.arange(3, dtype=np.float32)}


@pytest.fixture(autouse=True)
def own_child() -> Iterator[None]:
    """Every test starts without a child, and leaves none."""
    with no_child():
        yield


def test_a_runtime_that_aborts_is_an_error() -> None:
    with (
        aborting_runtime(),
        pytest.raises(SessionError, match=r"could not open the model: .* ended with SIGABRT: bad shape\n"),
    ):
        open_session(model(), isolated=True)
    assert open_session(model(), isolated=True).run(FEED)["sum"].tolist() == [[1, 2, 3]] * 2


def test_sessions_of_a_child_that_ended_say_so() -> None:
    session = open_session(model(), isolated=True)
    assert isolation._child is not None
    os.kill(isolation._child.process.pid, signal.SIGSEGV)
    with pytest.raises(
        SessionError, match="onnxruntime could not run the model: its process ended with SIGSEGV"
    ):
        session.run(FEED)


def test_a_session_that_nothing_refers_to_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[int]] = []
    real = isolation.Sender.send
    monkeypatch.setattr(
        isolation.Sender, "send", lambda self, h, a=None: (sent.append(h["close"]), real(self, h, a))
    )
    session = open_session(model(), isolated=True)
    del session
    gc.collect()
    assert len(sent[-1]) == 1


def test_an_interrupted_answer_does_not_become_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(model(), isolated=True)
    with monkeypatch.context() as patched:
        patched.setattr(isolation.Receiver, "receive", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.run(FEED)
    assert open_session(model(), isolated=True).run(FEED)["sum"].shape == (2, 3)


def test_results_stay_when_the_next_one_comes() -> None:
    session = open_session(model(), isolated=True)
    first = session.run(FEED)["sum"]
    first += 1  # torch takes arrays as they are, so they must be writable
    second = session.run({**FEED, "x": np.zeros((2, 3), np.float32)})["sum"]
    assert first.tolist() == [[2, 3, 4]] * 2 and second.tolist() == [[0, 1, 2]] * 2


def test_memory_given_back_after_each_call_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsebit.runtime.wire.LARGEST_KEPT", 0)
    session = open_session(model(), isolated=True)
    for rows in (1, 5000, 2, 9000, 3):
        x = np.full((rows, 3), rows, np.float32)
        assert np.array_equal(session.run({**FEED, "x": x})["sum"], x + FEED["y"])


def test_memory_that_ends_is_an_error_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(model(), isolated=True)
    with monkeypatch.context() as patched:
        patched.setattr(
            os, "pwrite", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(SessionError, match=r"no memory to share .*: No space left on device"):
            session.run(FEED)
    assert session.run(FEED)["sum"].shape == (2, 3)


def test_paths_are_those_of_the_process_that_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import onnx

    open_session(model(), isolated=True)  # the child's folder is the one of now
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), "net.onnx")
    session = open_session("net.onnx", isolated=True, save_optimized=Path("seen.onnx"))
    assert session.source == "net.onnx" and (tmp_path / "seen.onnx").is_file()


def test_an_application_with_python_inside_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.frozen", True, raising=False)
    start_child()
    assert open_session(model(), isolated=True).run(FEED)["sum"].shape == (2, 3)
    assert isolation._child is None


def test_a_child_that_was_started_early_serves_the_first_session() -> None:
    start_child()
    early = isolation._child
    start_child()
    open_session(model(), isolated=True)
    assert early is not None and isolation._child is early
