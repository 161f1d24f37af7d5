"""Where Triton is installed, its interpreter runs the kernels on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsebit.kernels.launch import AVAILABLE


@pytest.mark.skipif(not AVAILABLE, reason="Triton is not installed")
@pytest.mark.parametrize("name", ["fake_quant", "grouped", "packed_matmul"])
def test_kernels_equal_their_references_in_the_interpreter(name: str) -> None:
    # In a process of its own: Triton reads the variable when it is imported.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.interpreted", name],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
