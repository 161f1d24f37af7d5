"""Compare quantized values with quantized values, and numbers with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.export.translate.marker import Marked
from sparsebit.numerics.masked import masked_places
from sparsebit.runtime.arrays import as_array


def distance(got: Any, wanted: Any) -> tuple[int, int]:
    """How many codes differ, and by how much at most."""
    difference = np.abs(np.asarray(got).astype(np.int64) - np.asarray(wanted).astype(np.int64))
    return int(np.count_nonzero(difference)), int(difference.max(initial=0))


def unexplained(got: Any, unrounded: Any, tolerance: float, ends: tuple[int, int]) -> int:
    """How many codes are not what a number rounds to, even if it is moved by ``tolerance`` steps.

    ``unrounded`` is the number in steps; a code at one of the ``ends`` of the range represents all numbers beyond it.

    Example:
        >>> unexplained([3, 4, 9], [3.49, 3.49, 20.0], 0.02, (0, 9))
        0
        >>> unexplained([4], [3.3], 0.02, (0, 9))
        1
    """
    codes, place = np.asarray(got).astype(np.float64), np.asarray(unrounded, dtype=np.float64)
    below = np.where(codes <= ends[0], -np.inf, codes - 0.5) - place
    above = place - np.where(codes >= ends[1], np.inf, codes + 0.5)
    return int(np.count_nonzero(np.maximum(below, above) > tolerance))


def float8_steps(numbers: Any, tensor: Marked) -> Any:
    """Numbers on an 8-bit float grid as integers in the order of the grid."""
    codes = tensor.grid.codes(torch.as_tensor(np.asarray(numbers)))
    bits = codes.view(torch.uint8).to(torch.int16)
    return torch.where(bits < 128, bits, 128 - bits).numpy()


def relative_error(got: Any, wanted: Tensor, *, smallest: float = 1e-12) -> float:
    """The largest difference relative to the largest value, at least ``smallest``; infinite if not comparable."""
    a, b = np.asarray(got), as_array(wanted)
    if a.shape != b.shape:
        return float("inf")
    if not b.size:
        return 0.0
    if not wanted.is_floating_point() and not wanted.is_complex():
        return float(np.mean(a != b))
    wide = np.complex128 if wanted.is_complex() else np.float64
    a, b = a.astype(wide), b.astype(wide)
    known = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~known], b[~known], equal_nan=True):
        return float("inf")
    a, b = without_mask(a[known], b[known])
    return float(np.abs(a - b).max(initial=0)) / max(float(np.abs(b).max(initial=0)), smallest)


def without_mask(got: Any, wanted: Any) -> tuple[Any, Any]:
    """Finite numbers without those that mask a place, see ``masked_places``."""
    masked = masked_places(torch.from_numpy(wanted), torch.from_numpy(got))
    return (got, wanted) if masked is None else (got[~masked.numpy()], wanted[~masked.numpy()])


def distinct_share(numbers: Any, differs: Any) -> float:
    """The fraction of the distinct numbers that differ: padding repeats one number in thousands of places.

    Example:
        >>> distinct_share([0.5, 0.5, 0.5, 1.0, 2.0, 3.0], [True, True, True, False, False, False])
        0.25
    """
    values, mask = np.asarray(numbers), np.asarray(differs, dtype=bool)
    return len(np.unique(values[mask])) / max(len(np.unique(values)), 1)


def same_numbers(stored: Any, wanted: Tensor) -> Any:
    """Which numbers of a weight in the file equal those of the model.

    The file multiplies quantized value and scale in float32 and converts the product to the model's type. A float64
    model multiplies in float64, so there the two may be half a float32 step apart.
    """
    ours = torch.from_numpy(np.ascontiguousarray(stored)).to(wanted.dtype)
    if wanted.dtype != torch.float64:
        return (ours == wanted).numpy()
    return torch.isclose(ours, wanted, rtol=1e-6, atol=0.0).numpy()
