"""What is said where channels change from batch to batch, and where outliers decide a grid."""

from __future__ import annotations

import pytest
import torch

from sparsebit.config import TensorSpec
from sparsebit.errors import SparsebitError
from sparsebit.quantization.quantizers import Uniform


def test_channels_that_change_from_batch_to_batch_are_named() -> None:
    """As where axis 1 is the batch: a scale for each sample of one batch means nothing for the next."""
    quantizer = Uniform("x", "A", TensorSpec(granularity="channel"))
    quantizer.observe(torch.randn(7, 4, 16))
    wrong = r"(?s)'x' has a scale per channel.*expected: 4 along axis 1.*got: +3 in .*\(7, 3, 16\).*LAYOUT"
    with pytest.raises(SparsebitError, match=wrong):
        quantizer.observe(torch.randn(7, 3, 16))
    quantizer.finish()
    quantizer.enable_quant()
    with pytest.raises(SparsebitError, match=wrong):
        quantizer(torch.randn(7, 3, 16))
    last = Uniform("x", "A", TensorSpec(granularity="channel", layout="NLC"))
    for batch in (4, 3):
        last.observe(torch.randn(7, batch, 16))
    last.finish()
    assert last.scale.shape == (16,)


@pytest.mark.parametrize("observer", ["minmax", "mse", "percentile"])
def test_an_outlier_that_zeroes_everything_else_is_said(observer: str) -> None:
    quantizer = Uniform("x", "A", TensorSpec(observer=observer))
    x = torch.randn(1000)
    quantizer.observe(x)
    quantizer.observe(torch.cat([x, torch.tensor([1e30])]))
    with pytest.warns(
        UserWarning, match=r"range measured for 'x' reaches .*e.[23].*while most of its values.*become 0"
    ):
        quantizer.finish()


@pytest.mark.parametrize(
    "x", [torch.softmax(20 * torch.randn(8, 256), -1), torch.zeros(9), torch.randn(99).relu()]
)
def test_ordinary_activations_are_not_taken_for_outliers(x: torch.Tensor) -> None:
    quantizer = Uniform("x", "A", TensorSpec(symmetric=False))
    quantizer.observe(x)
    quantizer.finish()
