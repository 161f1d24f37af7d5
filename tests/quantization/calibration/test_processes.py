"""What one process knows, all of them know. With two processes: ``test_round.py``."""

from __future__ import annotations

from typing import Any

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.quantization.calibration import processes
from sparsebit.quantization.calibration.processes import gather_values, raise_together


def test_one_process_has_its_own_value() -> None:
    assert gather_values("here") == ["here"]
    raise_together(None)
    with pytest.raises(ValueError, match="mine"):
        raise_together(ValueError("mine"))


def test_an_error_elsewhere_is_raised_here_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(value: Any) -> list[Any]:
        return [value, "batch 3 holds NaN"]

    monkeypatch.setattr(processes, "gather_values", gathered)
    with pytest.raises(SparsebitError, match=r"another process: batch 3 holds NaN(.|\n)*rank 1"):
        raise_together(None)
    with pytest.raises(ValueError, match="mine"):  # each process raises its own
        raise_together(ValueError("mine"))
