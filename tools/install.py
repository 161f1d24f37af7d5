"""Create ``.venv`` beside the Makefile and install one profile of packages into it, exactly once.

Run by the Makefile as ``python3.11 tools/install.py demo|test``; needs only the standard library.

A stamp written last says what is installed: the files that decide it, the folder and the interpreter.
While it holds, nothing is done, in well under a second. An install that was cut short leaves a mark instead,
and the next run starts from an empty folder: pip would take a half-copied package for a whole one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"  # named before anything else, so that no other package brings a newer one
PROFILES = {"demo": ".[demo]", "test": ".[all,dev]"}  # later ones contain earlier ones


class InstallError(Exception):
    """Something the person at the keyboard has to put right."""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PROFILES:
        sys.stderr.write(f"usage: install.py {'|'.join(PROFILES)}\n")
        return 2
    try:
        with only_one_at_a_time(ROOT):
            ensure(ROOT, arguments[0])
    except InstallError as error:
        sys.stderr.write(f"install: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"install: failed at: {' '.join(map(str, error.cmd))}\n")
        sys.stderr.write("install: its own message is above; running this again starts over\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("install: interrupted; the next run starts over\n")
        return 130
    return 0


def ensure(root: Path, profile: str) -> bool:
    """Bring ``.venv`` to ``profile``; False when it was there already."""
    venv = root / ".venv"
    stamp, mark = venv / "installed.json", venv / "half-installed"
    wanted = fingerprint(root, profile)
    if covers(read(stamp), wanted):
        return False
    if venv.exists() and any(venv.iterdir()):
        if not stamp.exists() and not mark.exists():
            raise InstallError(
                f"{venv} was not made by this Makefile; move it away, or remove it with `make clean`"
            )
        if mark.exists() or read(stamp).get("place") != wanted["place"]:
            shutil.rmtree(venv)
    venv.mkdir(exist_ok=True)
    mark.touch()
    stamp.unlink(missing_ok=True)
    install(root, profile)
    unfinished = stamp.with_suffix(".tmp")
    unfinished.write_text(json.dumps(wanted, indent=2))
    os.replace(unfinished, stamp)
    mark.unlink()
    return True


def install(root: Path, profile: str) -> None:
    """The commands themselves. pip keeps whatever settings this machine gives it."""
    sys.stderr.write(
        f"install: filling {root / '.venv'} for {profile!r}; the first time takes a few minutes\n"
    )
    python = root / ".venv" / "bin" / "python"
    if not python.exists():
        # The base interpreter: the current one may live in the very .venv that was just removed.
        run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", ".venv"], root)
    pip: list[str | Path] = [python, "-m", "pip", "install", "-c", "constraints.txt"]
    run([*pip, "pip", "setuptools"], root)
    run([*pip, TORCH], root)
    run([*pip, TORCH, "--no-build-isolation", "-e", PROFILES[profile]], root)


def run(command: list[str | Path], root: Path) -> None:
    """Run one command. Its output, hundreds of lines of pip, is only shown if it fails."""
    sys.stderr.write(f"install: {' '.join(map(str, command[2:]))}\n")
    log = root / ".venv" / "install.log"
    with log.open("wb") as file:
        done = subprocess.run(command, cwd=root, stdout=file, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.stderr.write(log.read_text(errors="replace"))
        raise subprocess.CalledProcessError(done.returncode, command)


def fingerprint(root: Path, profile: str) -> dict[str, str]:
    """What an install depends on. Moving the folder counts: an editable install holds its absolute path."""
    inputs = hashlib.sha256()
    for path in (root / "pyproject.toml", root / "constraints.txt", Path(__file__)):
        inputs.update(path.read_bytes())
    return {
        "profile": profile,
        "inputs": inputs.hexdigest(),
        "place": f"{root} with {sys.base_prefix} {sys.version}",
    }


def covers(installed: dict[str, str], wanted: dict[str, str]) -> bool:
    """Whether a stamp answers a wish: same inputs, same place, and a profile at least as large."""
    order = list(PROFILES)
    return (
        all(installed.get(key) == wanted[key] for key in ("inputs", "place"))
        and installed["profile"] in order
        and order.index(installed["profile"]) >= order.index(wanted["profile"])
    )


def read(stamp: Path) -> dict[str, str]:
    """The stamp's fields, or none of them when it is missing or unreadable."""
    try:
        return {str(key): str(value) for key, value in json.loads(stamp.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


@contextlib.contextmanager
def only_one_at_a_time(root: Path) -> Iterator[None]:
    """Let a second `make` in the same folder wait for the first instead of installing over it."""
    with (root / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
