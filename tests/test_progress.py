"""A bar for people, nothing for anyone else, and always the same items."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from sparsebit import progress as module
from sparsebit.progress import length, lines_without_terminal, progress, waiting


@pytest.mark.parametrize("shown", [True, False, None])
def test_the_items_come_through_in_order(shown: bool | None) -> None:
    assert list(progress(range(5), "counting", shown=shown)) == [0, 1, 2, 3, 4]
    assert list(progress(iter("ab"), "counting", total=2, shown=shown)) == ["a", "b"]
    assert list(progress([], "counting", shown=shown)) == []


def test_a_bar_appears_once_it_has_taken_a_moment(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    list(progress(range(3), "counting", shown=True))
    assert capfd.readouterr() == ("", ""), "it was too quick to show"
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    list(progress(range(3), "counting", shown=True))
    printed = capfd.readouterr()
    assert printed.out == "" and "counting" in printed.err
    list(progress(range(3), "counting", shown=False))
    assert capfd.readouterr() == ("", "")


def test_no_terminal_no_bar(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    assert not sys.stderr.isatty()
    list(progress(range(3), "counting"))
    assert capfd.readouterr() == ("", "")


def test_an_error_inside_the_loop_stops_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    for _ in range(2):  # a bar left running would refuse a second one
        with pytest.raises(KeyError):
            for _ in progress(range(3), "counting", shown=True):
                raise KeyError


def test_a_stream_has_no_length() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)

    assert length(DataLoader(Stream())) is None and length([1]) == 1 and length(iter([])) is None
    assert len(list(progress(DataLoader(Stream()), "counting", shown=True))) == 3


def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_log_gets_lines_with_the_time_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(monkeypatch)
    monkeypatch.setattr(module, "BETWEEN", -1.0)
    with lines_without_terminal():
        assert list(progress(range(3), "counting")) == [0, 1, 2]
        list(progress(range(3), "hidden", shown=False))
    printed = capfd.readouterr()
    assert printed.out == "" and "hidden" not in printed.err
    assert re.fullmatch(
        r"counting: 0\ncounting: 1/3, about 0 s left\ncounting: 2/3, about 0 s left\n", printed.err
    )
    list(progress(range(3), "counting"))
    assert capfd.readouterr() == ("", "")


def test_waiting_shows_the_words_and_the_time_left(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    monkeypatch.setattr(module, "TICK", 0.01)
    out = err = ""

    def read_until(words: str) -> None:
        nonlocal out, err
        deadline = time.monotonic() + 60
        while words not in err and time.monotonic() < deadline:
            time.sleep(0.02)
            printed = capfd.readouterr()
            out, err = out + printed.out, err + printed.err

    with waiting("thinking", seconds=600, shown=True) as say:
        read_until("thinking")
        say("deciding")
        read_until("deciding")
        assert list(progress(range(3), "inside", shown=True)) == [0, 1, 2]
    printed = capfd.readouterr()
    assert out + printed.out == ""
    for words in ("thinking", "deciding", "at most", "left"):
        assert words in err + printed.err
    assert "inside" not in err + printed.err, "two bars at once disturb each other"
    with waiting("unseen", shown=False) as say:
        say("also unseen")
    assert capfd.readouterr() == ("", "")
