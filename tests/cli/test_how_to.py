"""The commands in the how-to work, one after the other, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytest.importorskip("sklearn")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cli.md"


def test_commands_of_the_how_to_work(cli: Cli) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 10
    for line in lines:
        done = cli(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.err}"
