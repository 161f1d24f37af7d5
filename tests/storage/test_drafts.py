"""Files of processes that are gone are removed, files of those that are not are left alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsebit.errors import ArtifactError
from sparsebit.storage.drafts import DRAFT, Draft, FolderDraft, new_place, sweep
from sparsebit.storage.locks import Lock
from tests.storage.processes import Other

OURS = re.compile(r"ours-\d")


def test_a_draft_is_hidden_until_it_is_finished_and_gone_when_it_is_not(tmp_path: Path) -> None:
    opened: list[Draft] = []
    draft, other = Draft(tmp_path, opened), Draft(tmp_path, opened)
    draft.file.write(b"x")
    assert draft.finish("name").read_bytes() == b"x"
    for each in opened:
        each.close()
    assert [path.name for path in tmp_path.iterdir()] == ["name"] and opened == [draft, other]


def test_sweeping(tmp_path: Path) -> None:
    for name in ("ours-1", "ours-2", "yours", ".sparsebit-0123456789abcdef.draft", ".sparsebit-0.draft"):
        (tmp_path / name).write_text("")
    live = Draft(tmp_path, [])
    sweep(tmp_path, OURS, lambda: {"ours-2"})
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"ours-2", "yours", ".sparsebit-0.draft", live.path.name}
    finished = live.finish("ours-3")
    sweep(tmp_path, OURS, lambda: {"ours-2"})
    assert finished.exists(), "locked until it is in use"
    live.close()
    sweep(tmp_path, OURS, lambda: {"ours-2"})
    assert not finished.exists()


def test_a_file_that_comes_into_use_meanwhile_is_kept(tmp_path: Path) -> None:
    (tmp_path / "ours-1").write_text("")
    answers = [set[str](), {"ours-1"}]
    sweep(tmp_path, OURS, lambda: answers.pop(0))
    assert (tmp_path / "ours-1").exists() and not DRAFT.fullmatch("ours-1")


def test_a_draft_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, calls = Lock.take, [0]

    def late(lock: Lock) -> bool:
        calls[0] += 1
        if calls[0] == 1:
            lock.path.unlink()
        return take(lock)

    monkeypatch.setattr(Lock, "take", late)
    opened: list[Draft] = []
    draft = Draft(tmp_path, opened)
    draft.file.write(b"x")
    assert draft.finish("name").read_bytes() == b"x" and calls == [2]
    draft.close()


WRITING = """
import sys
from pathlib import Path
from sparsebit.storage.drafts import FolderDraft
with FolderDraft(Path(sys.argv[1])) as draft:
    draft.file.mkdir()
    (draft.file / "a").write_text("theirs")
    print("ready", flush=True)
    sys.stdin.readline()
    draft.move_to_place()
"""


def test_two_processes_do_not_write_one_place_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "place"
    other = Other(WRITING, place)
    said = r"another run is writing .*place\n  next: wait until it has ended, or choose another name"
    with pytest.raises(ArtifactError, match=said), FolderDraft(place):
        pass
    with FolderDraft(tmp_path / "another") as draft:  # sweeps, and leaves the other process alone
        draft.file.write_text("ours")
        draft.move_to_place()
    other.finish()
    assert (place / "a").read_text() == "theirs" and (tmp_path / "another").read_text() == "ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "place"]


def test_what_a_killed_process_left_does_not_stand_in_the_way(tmp_path: Path) -> None:
    place = tmp_path / "place"
    Other(WRITING, place).kill()
    assert len(list(tmp_path.iterdir())) == 1
    with FolderDraft(place) as draft:
        assert list(draft.folder.iterdir()) == []
        draft.file.write_text("ours")
        draft.move_to_place()
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_new_place_is_filled_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "above" / "folder"
    with pytest.raises(KeyboardInterrupt), new_place(place) as draft:
        draft.mkdir()
        (draft / "half").touch()
        raise KeyboardInterrupt
    assert not list(place.parent.iterdir())
    with new_place(place) as draft:
        draft.mkdir()
        (draft / "all").touch()
        assert not place.exists()
    assert [one.name for one in place.parent.rglob("*")] == ["folder", "all"]
    with pytest.raises(ArtifactError, match="exists and contains files"), new_place(place):
        pass
