"""One holder at a time, and none that is gone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sparsebit.storage.locks import Lock
from tests.storage.processes import held_by_another


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first, second = Lock(tmp_path), Lock(tmp_path)
    assert first.take() and first.taken
    assert not second.take() and second.busy and not second.taken
    first.release()
    assert second.take() and not second.busy


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    with held_by_another(tmp_path):
        assert not lock.take() and lock.busy
    assert lock.take()


def test_what_was_removed_or_made_again_meanwhile_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    gone = Lock(place)
    assert not gone.take() and gone.busy
    place.mkdir()
    opened = os.open

    def open_and_replace(path: Path, flags: int) -> int:
        found = opened(path, flags)
        shutil.move(place, tmp_path / "elsewhere")
        place.mkdir()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_and_replace)
        assert not gone.take() and gone.busy
    assert gone.take()


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock, other = Lock(tmp_path), Lock(tmp_path)
    assert lock.take()
    told, tell = os.pipe()
    started, start = os.pipe()
    child = os.fork()
    if not child:  # a worker of a data loader, which outlives the process that started it
        os.write(start, b"x")  # what is done after a fork is done now
        os.read(told, 1)
        os._exit(0)
    os.read(started, 1)
    assert not other.take(), "the child's copy was closed, ours was not"
    lock.release()
    assert other.take()
    os.write(tell, b"x")
    os.waitpid(child, 0)
    for end in (told, tell, started, start):
        os.close(end)


def test_a_file_system_without_locks_is_not_a_busy_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    lock = Lock(tmp_path)
    assert not lock.take() and not lock.busy
