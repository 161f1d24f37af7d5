"""Triton's interpreter, which runs kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsebit.kernels.launch import AVAILABLE

needs_triton = pytest.mark.skipif(not AVAILABLE, reason="Triton is not installed")


def require_equal_to_reference(name: str) -> None:
    """The kernels of one file against their references, in a process of its own: Triton reads the variable early."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.interpreted", name],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
