"""An environment for each peer, made from a pinned requirements file; scripts run inside it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def ensure(venvs: Path, peer: str, requirements: Path) -> Path:
    """The python of the peer's environment, made or brought up to date where the requirements changed.

    Packages of the calling environment are visible in it, so torch is the same in all and is not downloaded again. A
    first line ``# --no-deps`` installs exactly what the file lists, for packages that would replace torch.
    """
    folder = venvs / peer
    python, done = folder / "bin" / "python", folder / "requirements.txt"
    text = requirements.read_text(encoding="utf-8")
    if done.is_file() and done.read_text(encoding="utf-8") == text:
        return python
    _call([sys.executable, "-m", "venv", str(folder)])
    # After the peer's own packages on the path: what it pins wins over what we have.
    share = (
        folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/zz_shared.pth"
    )
    share.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    limits = folder / "constraints.txt"
    limits.write_text(f"torch=={importlib.metadata.version('torch').partition('+')[0]}\n", encoding="utf-8")
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(limits), "-r", str(requirements)]
    _call([*command, *(["--no-deps"] if text.startswith("# --no-deps") else [])])
    done.write_text(text, encoding="utf-8")
    return python


def run_script(
    python: Path, script: Path | str, *args: str, threads: int = 1, timeout: float = 900
) -> dict[str, Any]:
    """The JSON object on the last line that a script (a path, or the name of a module) prints."""
    # -P: a script named as its peer must not be what `import peer` finds.
    what = ["-m", script] if isinstance(script, str) else [str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    done = _call(
        [str(python), "-P", "-W", "ignore", *what, *args], environment=environment, timeout=timeout, cwd=ROOT
    )
    answer: dict[str, Any] = json.loads(done.strip().splitlines()[-1])
    return answer


def _call(
    command: list[str],
    *,
    environment: dict[str, str] | None = None,
    timeout: float = 1800,
    cwd: Path | None = None,
) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=timeout, cwd=cwd
    )
    if done.returncode:
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-1:]
        raise RuntimeError(last[0] if last else f"{command[0]} ended with status {done.returncode}")
    return done.stdout
