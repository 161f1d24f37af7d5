"""A weight held as packed quantized values; in models: ``tests/quantization/modules/test_freeze.py``."""

from __future__ import annotations

import pytest
import torch

from sparsebit.config import TensorSpec
from sparsebit.errors import SparsebitError
from sparsebit.quantization.quantizers import Frozen, Uniform


def held(bits: int, symmetric: bool) -> tuple[Frozen, torch.Tensor]:
    spec = TensorSpec(bits=bits, symmetric=symmetric, granularity="channel")
    quantizer, weight = Uniform("w", "W", spec), torch.randn(4, 6)
    quantizer.observe_whole(weight)
    return Frozen(quantizer, weight), quantizer.snap(weight)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_it_gives_the_numbers_of_the_quantized_weight_and_thaws_to_them(bits: int, symmetric: bool) -> None:
    frozen, snapped = held(bits, symmetric)
    assert torch.equal(frozen(torch.empty(4, 6, device="meta")), snapped)
    assert frozen.packed.numel() == 4 * -(-6 * bits // 8)
    assert frozen.zero_point.numel() == (1 if symmetric else 4)
    quantizer, weight = frozen.thawed()
    assert torch.equal(weight, snapped) and torch.equal(quantizer(weight), snapped)


def test_what_needs_the_float_weight_is_refused() -> None:
    frozen, _ = held(8, True)
    for step in (frozen.reset, frozen.disable_quant, lambda: frozen.observe_whole(torch.ones(4, 6))):
        with pytest.raises(SparsebitError, match=r"'w' is frozen and cannot be(.|\n)*call qmodel.thaw\(\)"):
            step()


def test_numbers_follow_the_dtype_of_the_model() -> None:
    frozen, snapped = held(4, True)
    assert frozen.half()(snapped).dtype == torch.float16 and frozen.scale.dtype == torch.float32
