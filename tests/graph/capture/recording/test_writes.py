"""Writes in place are told as new values where torch has a function for that."""

from __future__ import annotations

import torch

from sparsebit.graph.capture.recording.writes import functional_call
from sparsebit.graph.functional import overwrite, set_item


def test_writes_have_functional_twins() -> None:
    x, y = torch.ones(2), torch.ones(2)
    assert functional_call(torch.Tensor.add_, "add_", (x, y), {}, x) == (torch.Tensor.add, (x, y), {})
    assert functional_call(torch.Tensor.__setitem__, "__setitem__", (x, 0, 1.0), {}, x) == (
        set_item,
        (x, 0, 1.0),
        {},
    )
    assert functional_call(torch.Tensor.copy_, "copy_", (x, y), {}, x) == (overwrite, (x, y), {})
    assert functional_call(torch.Tensor.eq_, "eq_", (x, y), {}, x) is None
