"""The difference between the outputs of the complete file and the model on real samples, as users would measure it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sparsebit.export.numbers import without_mask
from sparsebit.runtime.arrays import as_array

LARGEST_SQNR = 200.0  # dB: outputs that are equal


@dataclass(frozen=True, kw_only=True)
class OutputAgreement:
    """One output of the model: the runtime compared with torch.

    ``piece_error`` is not what a user sees: it is the error of the last piece alone, given equal quantized inputs.
    """

    name: str
    difference: float  # largest difference of the complete file
    relative: float  # the same as a fraction of the largest value
    sqnr_db: float  # signal-to-noise ratio of the complete file
    samples: int
    same_class: int | None = None  # samples with the same largest entry, if the output looks like classes
    piece_error: float | None = None  # relative; None if the file was not cut into pieces

    def __str__(self) -> str:
        classes = "" if self.same_class is None else f", same class {self.same_class} of {self.samples}"
        return (
            f"largest difference {self.difference:.3g} ({self.relative:.2%} of the largest value), "
            f"SQNR {self.sqnr_db:.1f} dB{classes}"
        )


class OutputTally:
    """Accumulates the difference of one output over several calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.difference = self.largest = self.signal = self.noise = 0.0
        self.samples = self.same = self.finite = 0
        self.classes = True
        self.piece_error: float | None = None

    def add(self, got: Any, wanted: Tensor) -> None:
        """Add one call: the array of the runtime and the tensor of the model."""
        a, b = np.asarray(got), as_array(wanted)
        self.samples += len(b) if b.ndim else 1
        if a.shape != b.shape:
            self.difference = self.noise = math.inf
            return
        looks_like_classes = b.ndim == 2 and b.shape[1] > 1 and wanted.is_floating_point()
        self.classes &= looks_like_classes
        if looks_like_classes:
            self.same += int(np.count_nonzero(a.argmax(1) == b.argmax(1)))
        wide = np.complex128 if wanted.is_complex() else np.float64
        left, right = a.astype(wide), b.astype(wide)
        known = np.isfinite(left) & np.isfinite(right)
        if not np.array_equal(left[~known], right[~known], equal_nan=True):
            self.difference = self.noise = math.inf
        self.finite += int(np.count_nonzero(known))
        left, right = without_mask(left[known], right[known])
        apart, sizes = np.abs(left - right), np.abs(right)
        self.difference = max(self.difference, float(apart.max(initial=0)))
        self.largest = max(self.largest, float(sizes.max(initial=0)))
        self.noise += float(np.square(apart).sum())
        self.signal += float(np.square(sizes).sum())

    def agreement(self) -> OutputAgreement:
        """The result of all calls so far."""
        ratio = LARGEST_SQNR if self.noise == 0 else -math.inf
        if 0 < self.noise < math.inf:
            ratio = min(LARGEST_SQNR, 10 * math.log10(max(self.signal, 1e-30) / self.noise))
        return OutputAgreement(
            name=self.name,
            difference=self.difference,
            relative=self.difference / self.largest if self.largest else self.difference,
            sqnr_db=ratio,
            samples=self.samples,
            same_class=self.same if self.classes and self.samples else None,
            piece_error=self.piece_error,
        )
