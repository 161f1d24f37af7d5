"""One run at a time works in a folder; its steps are removed, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.errors import ArtifactError
from sparsebit.storage import MANIFEST, remove_steps, working_in
from tests.storage.processes import held_by_another

BUSY = r"another run is working in .*work\n  next: wait until it has ended, or choose another folder"


def test_a_second_run_is_refused_and_one_after_the_first_is_not(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with held_by_another(work):
        with pytest.raises(ArtifactError, match=BUSY), working_in(work):
            pass
        with pytest.raises(ArtifactError, match=BUSY):
            remove_steps(work)
    with working_in(work):
        (work / "kept").write_text("")
    with working_in(None):
        pass
    assert work.is_dir()


def test_a_folder_that_stays_empty_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mistake"), working_in(tmp_path / "a" / "work"):
        raise ValueError("mistake")
    assert not (tmp_path / "a" / "work").exists()


def test_a_place_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"), working_in(tmp_path / "file"):
        pass


def test_steps_are_removed_and_files_of_the_user_stay(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in ("block-0000", "adaround-0001", "block-0002", "run-2024", "mine"):
        (work / name).mkdir(parents=True)
    for name in ("block-0000", "adaround-0001", "mine"):
        (work / name / MANIFEST).write_text("{}")
    (work / "block-0002" / ".sparsebit-0123456789abcdef.draft").write_text("killed")
    (work / "run-2024" / "notes.txt").write_text("mine")
    remove_steps(work)
    assert sorted(path.name for path in work.iterdir()) == ["mine", "run-2024"]
    for name in ("mine", "run-2024"):
        next((work / name).iterdir()).unlink()
        (work / name).rmdir()
    remove_steps(work)
    remove_steps(work)
    assert not work.exists()
