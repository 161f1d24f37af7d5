"""Triton's interpreter, which runs kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from packaging.version import Version

from sparsebit.kernels.launch import AVAILABLE


def _why_not() -> str:
    if not AVAILABLE:
        return "Triton is not installed"
    import triton

    if Version(triton.__version__) < Version("3.7") and Version(numpy.__version__) >= Version("2.4"):
        return "the interpreter of Triton 3.6 takes int() of arrays, which NumPy 2.4 refuses"
    return ""


needs_triton = pytest.mark.skipif(bool(_why_not()), reason=_why_not())


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
