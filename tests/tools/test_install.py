"""The installer behind the Makefile: works once, and again only when something it depends on changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import install


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project folder with a space in its name."""
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]")
    (folder / "constraints.txt").write_text("torch==2.13.0")
    return folder


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the commands instead of running them; that for the venv still leaves a folder behind."""
    seen: list[str] = []

    def pretend(command: list[str | Path], root: Path) -> None:
        seen.append(" ".join(map(str, command[1:])))
        if "venv" in command:
            (root / ".venv" / "bin").mkdir()
            (root / ".venv" / "bin" / "python").touch()

    monkeypatch.setattr(install, "run", pretend)
    return seen


def test_first_run_creates_and_second_does_nothing(root: Path, commands: list[str]) -> None:
    assert install.ensure(root, "demo")
    assert commands == [
        "-m venv .venv",
        "-m pip install -c constraints.txt pip setuptools",
        "-m pip install -c constraints.txt torch==2.13.0",
        "-m pip install -c constraints.txt torch==2.13.0 --no-build-isolation -e .[demo]",
    ]
    commands.clear()
    assert not install.ensure(root, "demo")
    assert commands == []


def test_the_larger_profile_serves_the_smaller_but_not_the_other_way(root: Path, commands: list[str]) -> None:
    install.ensure(root, "demo")
    commands.clear()
    assert install.ensure(root, "test")
    assert "-m venv .venv" not in commands  # the environment is extended, not made again
    assert commands[-1].endswith("-e .[all,dev]")
    assert not install.ensure(root, "demo")
    assert not install.ensure(root, "test")


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again(root: Path, commands: list[str], name: str) -> None:
    install.ensure(root, "test")
    (root / name).write_text((root / name).read_text() + "\n# changed")
    assert install.ensure(root, "test")
    assert not install.ensure(root, "test")


def test_a_touched_file_with_the_same_text_does_not(root: Path, commands: list[str]) -> None:
    install.ensure(root, "test")
    (root / "pyproject.toml").write_text((root / "pyproject.toml").read_text())
    assert not install.ensure(root, "test")


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_an_interrupted_install_starts_from_an_empty_folder(
    root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    pretend = install.run

    def interrupted(command: list[str | Path], root: Path) -> None:
        pretend(command, root)
        (root / ".venv" / "half a package").touch()
        if len(commands) == fails_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(install, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install.ensure(root, "test")
    monkeypatch.setattr(install, "run", pretend)
    commands.clear()
    assert install.ensure(root, "test")
    assert commands[0] == "-m venv .venv"
    assert not (root / ".venv" / "half a package").exists()
    assert not install.ensure(root, "test")


def test_an_interrupted_upgrade_is_redone_too(
    root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install.ensure(root, "demo")
    pretend = install.run
    monkeypatch.setattr(install, "run", lambda command, root: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        install.ensure(root, "test")
    monkeypatch.setattr(install, "run", pretend)
    commands.clear()
    assert install.ensure(root, "demo")
    assert commands[0] == "-m venv .venv"


def test_a_moved_folder_installs_again(root: Path, commands: list[str]) -> None:
    """An editable install and the scripts of a venv hold absolute paths."""
    install.ensure(root, "test")
    moved = root.rename(root.parent / "elsewhere")
    commands.clear()
    assert install.ensure(moved, "test")
    assert commands[0] == "-m venv .venv"


def test_an_environment_of_the_users_own_is_left_alone(root: Path, commands: list[str]) -> None:
    (root / ".venv").mkdir()
    (root / ".venv" / "pyvenv.cfg").touch()
    with pytest.raises(install.InstallError, match="was not made by this Makefile"):
        install.ensure(root, "test")
    assert commands == []
    assert (root / ".venv" / "pyvenv.cfg").exists()


def test_an_unreadable_stamp_counts_as_none(root: Path, commands: list[str]) -> None:
    install.ensure(root, "test")
    (root / ".venv" / "installed.json").write_text("{half")
    commands.clear()
    assert install.ensure(root, "test")
    assert commands[0] == "-m venv .venv"


def test_output_is_shown_only_if_a_command_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / ".venv").mkdir()
    install.run([sys.executable, "-c", "print('many lines')"], root)
    assert capsys.readouterr().err == "install: print('many lines')\n"
    with pytest.raises(subprocess.CalledProcessError):
        install.run([sys.executable, "-c", "print('the reason'); raise SystemExit(1)"], root)
    assert capsys.readouterr().err.endswith("\nthe reason\n")


def test_an_unknown_profile_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["everything"]) == 2
    assert "demo|test" in capsys.readouterr().err
