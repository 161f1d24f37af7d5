"""Optional packages are imported when needed, and an error says what to install."""

from __future__ import annotations

import sys

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.runtime.packages import require


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(SparsebitError, match=r"'openvino'[\s\S]*pip install -e \"\.\[openvino\]"):
        require("openvino")
