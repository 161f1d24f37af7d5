"""Files and folders are whole or not there, at whatever line an interrupt comes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from sparsebit.errors import ArtifactError
from sparsebit.storage import MANIFEST, folder, read_folder, read_text, text_file, write_folder, write_text


def interrupted_at(count: int, action: Callable[[], object], file: str) -> bool:
    """Run something and raise KeyboardInterrupt at its ``count``-th line in a file; whether it came to that."""
    seen = 0

    def lines(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        seen += event == "line"
        if event == "line" and seen == count:
            raise KeyboardInterrupt
        return lines

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        return lines if frame.f_code.co_filename == file else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file left to the collector
@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_survives_an_interrupt_at_any_line(tmp_path: Path, existing: bool) -> None:
    """What was there or what is new can be loaded; what an interrupted cleanup leaves, the next save removes."""
    place, old, new = tmp_path / "it", {"state": {"w": torch.ones(2)}}, {"state": {"w": torch.zeros(2)}}
    for count in range(1, 200):
        if existing:
            write_folder(place, "thing", 1, {"old": True}, old)
        if not interrupted_at(
            count, lambda: write_folder(place, "thing", 1, {"old": False}, new), folder.__file__
        ):
            break
        assert [path.name for path in tmp_path.iterdir()] in ([], ["it"])
        if existing or (place / MANIFEST).exists():
            content = read_folder(place, "thing", 1)[0].data
            assert content == {"old": False} or (existing and content == {"old": True})
        write_folder(place, "thing", 1, {"old": True}, old)
        assert len(list(place.iterdir())) == 2
        if not existing:
            shutil.rmtree(place)
    assert 15 < count < 199


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file left to the collector
def test_a_file_survives_an_interrupt_at_any_line(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    place.write_text("old")
    for count in range(1, 100):
        if not interrupted_at(count, lambda: write_text(place, "new"), text_file.__file__):
            break
        assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
        assert place.read_text() in ("old", "new")
    assert 5 < count < 99


def test_a_link_is_followed_and_leftovers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / ".sparsebit-0123456789abcdef.draft").write_text("of a process that was killed")
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").is_symlink() and (tmp_path / "b.txt").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_place_that_cannot_be_is_told_and_a_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"):
        write_text(tmp_path / "file" / "below.txt", "text")
    assert write_text(tmp_path / "new" / "a.txt", "é").read_text(encoding="utf-8") == "é"


def test_a_file_is_read_within_limits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ü")
    assert read_text(tmp_path / "a.txt", 2) == "ü"
    with pytest.raises(OSError, match="more than 1 bytes"):
        read_text(tmp_path / "a.txt", 1)
    os.mkfifo(tmp_path / "pipe")
    for name, reason in {
        "pipe": "not a file",
        ".": "it is a folder",
        "a\0b": "not a valid file name",
    }.items():
        with pytest.raises(OSError, match=reason):
            read_text(f"{tmp_path}/{name}", 9)
