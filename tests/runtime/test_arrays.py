"""Tensors as arrays."""

from __future__ import annotations

import numpy as np
import torch

from sparsebit.runtime.arrays import as_array


def test_half_precision_keeps_its_type() -> None:
    assert as_array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).dtype.name == "bfloat16"
    assert as_array(torch.ones(2, dtype=torch.float16)).dtype == np.float16
