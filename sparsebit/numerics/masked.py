"""Places of a tensor that a model masks with a large number, such as -1e9."""

from __future__ import annotations

from torch import Tensor

FAR = 1000.0  # times the largest number that masks no place


def masked_places(exact: Tensor, other: Tensor) -> Tensor | None:
    """Bool in the shape of finite numbers: where they mask a place; None if no place is masked.

    Beside such numbers every error of the others seems small. A mask is the number of the largest magnitude, if it is
    far beyond all others and equal in both tensors.

    Example:
        >>> import torch
        >>> logits = torch.tensor([1.0, -1e9, 2.0])
        >>> masked_places(logits, logits)
        tensor([False,  True, False])
    """
    if not exact.numel():
        return None
    sizes = exact.abs()
    masked = sizes == (largest := sizes.max())
    rest = sizes.masked_fill(masked, 0).max()
    far = (rest > 0) & (largest > FAR * rest) & (exact == other)[masked].all()
    return masked if bool(far) else None
