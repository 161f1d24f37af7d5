"""Functions spelled without sequences compute what torch's own compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit.export.translate.spellings import SPELLINGS

VECTORS = [torch.arange(3.0), torch.arange(4.0)]
IMAGES = [torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.hstack, (VECTORS,)),
        (torch.hstack, (IMAGES,)),
        (torch.vstack, (IMAGES,)),
        (torch.vstack, ([VECTORS[0], VECTORS[0]],)),
        (torch.dstack, (IMAGES,)),
        (torch.tensor_split, (IMAGES[0], 3, 2)),
        (torch.tensor_split, (VECTORS[1], (1, -1))),
        (torch.Tensor.tensor_split, (VECTORS[1], 3)),
    ],
)
def test_equal_to_torch(function: Any, arguments: tuple[Any, ...]) -> None:
    ours, theirs = SPELLINGS[function](*arguments), function(*arguments)
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    assert all(torch.equal(left, right) for left, right in pairs)
