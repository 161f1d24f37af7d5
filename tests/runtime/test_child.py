"""The child process serves without torch, and a question it cannot answer is an error and not its end."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sparsebit.runtime import SessionError, open_session
from tests.runtime.test_session import model


def test_it_starts_without_torch() -> None:
    code = "import sys, sparsebit.runtime.child; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_failure_is_not_the_end() -> None:
    session = open_session(model(), isolated=True)
    with pytest.raises(SessionError, match="onnxruntime could not run the model"):
        session.run({"x": np.ones((2, 3)), "y": np.ones(3, np.float32)})  # float64
    feed = {"x": np.ones((1, 3), np.float32), "y": np.zeros(3, np.float32)}
    assert session.run(feed)["sum"].tolist() == [[1, 1, 1]]
