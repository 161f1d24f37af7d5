"""Files and folders are whole or not there, at whatever line an interrupt comes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.storage import folder, read_folder, require_file, text_file, write_folder, write_text


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


@pytest.mark.parametrize("existing", [False, True])
def test_a_folder_survives_an_interrupt_at_any_line(tmp_path: Path, existing: bool) -> None:
    place, tensors = tmp_path / "it", {"state": {"w": torch.ones(2)}}
    for count in range(1, 200):
        if existing and not place.exists():
            write_folder(place, "thing", 1, {"old": True}, tensors)
        if not interrupted_at(
            count, lambda: write_folder(place, "thing", 1, {"old": False}, tensors), folder.__file__
        ):
            break
        assert [path.name for path in tmp_path.iterdir()] in ([], ["it"])
        assert place.exists() or not existing, "what was there is gone"
        if place.exists():
            content = read_folder(place, "thing", 1)[0]
            assert existing or content == {"old": False}
            if not existing:
                for path in place.iterdir():
                    path.unlink()
                place.rmdir()
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


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert require_file(tmp_path / "new" / "a.html") == tmp_path / "new" / "a.html"
    with pytest.raises(SparsebitError, match="it is a folder"):
        require_file(tmp_path)
    with pytest.raises(SparsebitError, match="is a file"):
        require_file(tmp_path / "file" / "a.html")
