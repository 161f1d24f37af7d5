"""Kernels are prepared once for each kind of tensor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.quantization.quantizers import base, prepared_kernels
from tests.quantization.quantizers.test_base import calibrated, make


def test_prepared_kernels_are_kept_until_the_grid_or_the_device_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[torch.Size] = []

    def kernels_for(x: Tensor, *_: Any) -> str:
        asked.append(x.shape)
        return "kernels"

    monkeypatch.setattr(base, "kernels_run_on", lambda x: True)
    monkeypatch.setattr(prepared_kernels, "kernels_for", kernels_for)
    monkeypatch.setattr(prepared_kernels, "snap_with", lambda kernels, x, scale, zero_point, factor: x * 2)
    x = torch.ones(2, 3)
    quantizer = calibrated(make("uniform", "A", "per-tensor-affine"), x)
    assert torch.equal(quantizer(x), x * 2) and torch.equal(quantizer(x), x * 2)
    assert torch.equal(copy.deepcopy(quantizer)(x), x * 2)  # a copy has none yet
    assert asked == [x.shape, x.shape]
    quantizer(torch.ones(3, 3))
    quantizer.set_grid(quantizer.scale * 2, quantizer.zero_point)
    quantizer(x)
    quantizer.load_state_dict(quantizer.state_dict())
    quantizer(x)
    quantizer.float()
    quantizer(x)
    assert asked[2:] == [(3, 3), x.shape, x.shape, x.shape]


def test_a_tensor_without_kernels_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(base, "kernels_run_on", lambda x: True)
    monkeypatch.setattr(prepared_kernels, "kernels_for", lambda *arguments: asked.append(arguments))
    x = torch.randn(2, 3)
    quantizer = calibrated(make("lsq", "A", "per-tensor-affine"), x)
    expected = quantizer.grid().snap(x)
    assert torch.equal(quantizer(x), expected) and torch.equal(quantizer(x), expected) and len(asked) == 1
