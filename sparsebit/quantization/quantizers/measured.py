"""Messages about measured tensors: channels that change, outliers that dominate a grid."""

from __future__ import annotations

import warnings

from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization.observers import CalibrationError

# If the step is this many times the size of typical values, nearly all of them become zero.
OUTLIER_STEP = 1e4


def other_channels(name: str, shape: tuple[int, ...], axis: int, before: int) -> SparsebitError:
    """The error for an activation with ``before`` channels when it was measured, and now another number."""
    return SparsebitError(
        f"{name!r} has a scale per channel, but the number of channels changes from call to call",
        expected=f"{before} along axis {axis}",
        got=f"{shape[axis]} in a tensor of shape {shape}",
        hint="name the axis of the channels with A.OBSERVER.LAYOUT (NCHW: axis 1, NLC: the last), "
        "or use a per-tensor scheme for this tensor under SPECIFIC",
    )


def in_batch(name: str, batch: int, error: CalibrationError) -> CalibrationError:
    """The error for a tensor that holds NaN or infinity in a batch, counted from 1."""
    return CalibrationError(
        f"{name!r} cannot be calibrated: {error.message}",
        row=error.row,
        where=f"batch {batch} (counted from 1)",
        got=error.got,
        hint=error.hint,
    )


def span(values: Tensor) -> str:
    """The numbers of a grid as short text.

    Example:
        >>> import torch
        >>> span(torch.tensor([0.5, 0.25])), span(torch.tensor([-0.0]))
        ('[0.25, 0.5]', '0')
    """
    values = values.detach()
    low, high = float(values.min()) + 0.0, float(values.max()) + 0.0  # -0 reads as 0
    return f"{low:.4g}" if low == high else f"[{low:.4g}, {high:.4g}]"


def warn_of_outliers(name: str, step: float, some: Tensor, reach: float) -> None:
    """Warn if single values determine the grid, so that everything else becomes zero on it.

    ``step`` is that of the grid, ``some`` are typical values, ``reach`` is the largest magnitude of the range.
    """
    if step <= 1:  # most numbers of a softmax are close to 0, as they should be; its largest is 1
        return
    sizes = some.abs()
    sizes = sizes[sizes > 0]
    typical = float(sizes.median()) if sizes.numel() else 0.0
    if typical and step > OUTLIER_STEP * typical:
        warnings.warn(
            f"the range measured for {name!r} reaches {reach:.3g}, while most of its values are about {typical:.3g}: "
            f"a step of its grid is {step:.3g}, so nearly all become 0. "
            "Look for an outlier in the calibration data, or in what the model computes from it",
            stacklevel=3,
        )


def require_real(name: str, x: Tensor, batch: int) -> None:
    """Refuse complex numbers in a batch of calibration or training."""
    if x.is_complex():
        raise SparsebitError(
            f"{name!r} holds complex numbers, which have no range to quantize",
            where=f"batch {batch} (counted from 1)",
            hint="exclude it from quantization under SPECIFIC, or calibrate with real numbers",
        )
