"""Starting a Triton kernel with little work on the host: it is looked up once for each kind of arguments."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
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
    across: int = 1,
) -> None:
    """``kernel[programs, across](*tensors, *floats, *settings)`` on the tensors' device, which is the current one.

    Triton compiles for the dtypes of tensors, whether they begin at a multiple of 16 bytes, and some properties of the
    integers. With all of these in one key, what it compiled is started again without its own, slower, look-up; and
    with addresses instead of tensors, which it would ask the driver about one by one.
    """
    addresses, dtypes = [t.data_ptr() for t in tensors], tuple([t.dtype for t in tensors])
    aligned = tuple([address % 16 == 0 for address in addresses])
    device = tensors[0].get_device()
    key = (id(kernel), device, warps, settings, dtypes, aligned)
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[(programs, across)](*tensors, *floats, *settings, num_warps=warps)
        return
    metadata = found.packed_metadata
    # What Triton's own start does, less its hooks.
    start = (programs, across, 1, current_stream(device), found.function, metadata, None, None, None)
    found.run(*start, *addresses, *floats, *settings)


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def current_stream(device: int) -> int:
    """The address of the stream that torch works on."""
    return torch._C._cuda_getCurrentRawStream(device)
