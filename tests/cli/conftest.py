"""The command line in a folder of its own, with a user's file in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sparsebit.__main__ import main
from tests.cli.user_code import NET


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def call(*words: str) -> Done:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Done(code, *capsys.readouterr())

    yield call
    torch.set_num_threads(threads)


def left_behind(place: Path) -> list[str]:
    """Hidden files and folders: drafts that were not cleaned up."""
    return [path.name for path in place.rglob(".*") if path.name != "__pycache__"]
