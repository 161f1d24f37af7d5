"""Tensors as the arrays that runtimes take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparsebit.runtime.packages import require

if TYPE_CHECKING:
    from torch import Tensor


def as_array(x: Tensor) -> Any:
    """A tensor as a numpy array, also in bfloat16."""
    import torch  # here, since the process that isolates sessions does without

    x = x.detach().cpu()
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(require("ml_dtypes").bfloat16)
    return x.numpy()
