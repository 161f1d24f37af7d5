"""The plain quantizer: nothing but the grid over the measured range."""

from __future__ import annotations

import pytest
import torch

from sparsebit.config import TensorSpec
from sparsebit.numerics import choose_grid
from sparsebit.quantization.modules.exchange import is_plain
from sparsebit.quantization.quantizers import QUANTIZERS, Uniform


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_it_snaps_to_the_grid_over_what_it_saw(bits: int, symmetric: bool) -> None:
    x = torch.randn(3, 50)
    quantizer = QUANTIZERS["Uniform"]("x", "A", TensorSpec(bits=bits, symmetric=symmetric))
    assert isinstance(quantizer, Uniform) and is_plain(quantizer)
    assert torch.equal(quantizer(x), x)
    quantizer.observe(x)
    quantizer.finish()
    quantizer.enable_quant()
    grid = choose_grid(x.min()[None], x.max()[None], quantizer.code)
    assert torch.equal(quantizer(x), grid.snap(x))
