"""Files of processes that are gone are removed, files of those that are not are left alone."""

from __future__ import annotations

import re
from pathlib import Path

from sparsebit.storage.drafts import DRAFT, Draft, sweep

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
