"""Starting a Triton kernel with little work on the host: it is looked up once for each kind of arguments."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from torch import Tensor

AVAILABLE = importlib.util.find_spec("triton") is not None  # what the kernels are written in

_compiled: dict[Any, Any] = {}


def launch(
    kernel: Any,
    programs: int,
    tensors: Sequence[Tensor],
    floats: tuple[float, ...],
    settings: tuple[int | bool, ...],
    warps: int = 4,
) -> None:
    """``kernel[programs](*tensors, *floats, *settings)`` on the device of the tensors, which has to be the current one.

    Triton compiles for the dtypes of tensors, whether they begin at a multiple of 16 bytes, and some properties of the
    integers. With all of these in one key, what it compiled is started again without its own, slower, look-up.
    """
    key = (kernel, tensors[0].device, warps, settings, *[(t.dtype, t.data_ptr() % 16 == 0) for t in tensors])
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[(programs,)](*tensors, *floats, *settings, num_warps=warps)
    else:
        found[(programs, 1, 1)](*tensors, *floats, *settings)
