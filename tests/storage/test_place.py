"""Places that cannot be written are refused before any work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sparsebit.storage import ArtifactError, require_file, write_text
from sparsebit.storage.place import require_name, require_new, require_room, require_writable, writing


def test_a_file_can_go_where_nothing_is_in_the_way(tmp_path: Path) -> None:
    assert require_file(tmp_path / "new" / "a.html") == tmp_path / "new" / "a.html"
    (tmp_path / "file").write_text("")
    assert require_file(tmp_path / "file") == tmp_path / "file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="pipe: it is not a regular file"):
        write_text(tmp_path / "pipe", "words")
    assert (tmp_path / "pipe").is_fifo()


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="it is a folder"):
        require_file(tmp_path)
    with pytest.raises(ArtifactError, match="file is a file"):
        require_file(tmp_path / "file" / "a.html")
    with pytest.raises(ArtifactError, match="longer than 255 bytes"):
        require_name(tmp_path / ("ü" * 200) / "a")
    with pytest.raises(ArtifactError, match="NUL"):
        require_name("a\0b")


def test_room(tmp_path: Path) -> None:
    require_room(tmp_path, tmp_path, 0)
    require_room(tmp_path, tmp_path, 1)
    with pytest.raises(ArtifactError, match=r"it needs 1.1 TB"):
        require_room(tmp_path, tmp_path, 2**40)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ArtifactError, match="no permission to write in"):
        require_writable(tmp_path / "closed" / "a")


def test_what_the_system_refuses_while_writing_is_our_error(tmp_path: Path) -> None:
    for error in (OSError(28, "No space left on device"), KeyError("No space left on device")):
        with (
            pytest.raises(ArtifactError, match=r"cannot write .*a: .*No space left"),
            writing(tmp_path / "a", KeyError),
        ):
            raise error
    with pytest.raises(KeyError), writing(tmp_path / "a"):
        raise KeyError("another")


def test_a_new_place_is_not_there_yet_or_is_an_empty_folder(tmp_path: Path) -> None:
    assert require_new(tmp_path) == tmp_path and require_new(tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ArtifactError, match=r"exists and contains files[\s\S]*choose a new or an empty folder"
    ):
        require_new(tmp_path)
    with pytest.raises(ArtifactError, match=r"file exists already[\s\S]*choose a new name"):
        require_new(tmp_path / "file")


@pytest.mark.parametrize("wrong", [None, 3, ["a"], b"a"])
def test_what_is_not_a_path_is_named(wrong: Any) -> None:
    with pytest.raises(ArtifactError, match="the place to write to is not a path"):
        require_name(wrong)
