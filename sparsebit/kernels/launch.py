"""Launch Triton kernels with little host time: a kernel is looked up once for each kind of arguments."""

from __future__ import annotations

import functools
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
    registers: int | None = None,
    descriptors: Sequence[Any] = (),
) -> None:
    """``kernel[programs, across](*descriptors, *tensors, *floats, *settings)`` on the tensors' device, the current one.

    Triton compiles for the dtypes of tensors, whether they begin at a multiple of 16 bytes, and some properties of the
    integers. With all of these in one key, what it compiled is started again without its own, slower, look-up; and
    with addresses instead of tensors, which it would ask the driver about one by one. ``registers`` is the most that a
    thread may take: with fewer, more threads run at once.
    """
    addresses, dtypes = [t.data_ptr() for t in tensors], tuple([t.dtype for t in tensors])
    aligned = tuple([address % 16 == 0 for address in addresses])
    device = tensors[0].get_device()
    if descriptors:
        dtypes += tuple([descriptor.base.dtype for descriptor in descriptors])
    key = (id(kernel), device, warps, registers, settings, dtypes, aligned)
    found = _compiled.get(key)
    if found is None:
        options = {"num_warps": warps} if registers is None else {"num_warps": warps, "maxnreg": registers}
        _compiled[key] = kernel[(programs, across)](*descriptors, *tensors, *floats, *settings, **options)
        return
    metadata = found.packed_metadata
    # What Triton's own start does, less its hooks.
    start = (programs, across, 1, current_stream(device), found.function, metadata, None, None, None)
    found.run(*start, *descriptors, *addresses, *floats, *settings)


class PreparedLaunch:
    """A kernel with the settings of all its calls; a call only passes addresses and numbers.

    Tensors have the same dtypes in every call. Tensors that are not aligned to 16 bytes go through ``launch``.
    """

    def __init__(self, kernel: Any, programs: int, settings: tuple[int | bool, ...], device: int) -> None:
        self.kernel, self.programs, self.settings, self.device = kernel, programs, settings, device
        self._compiled: Any = None

    def __call__(self, tensors: tuple[Tensor, ...], floats: tuple[float, ...]) -> None:
        """Start it on the device it was prepared for."""
        device, found = self.device, self._compiled
        if several_devices() and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(tensors, floats)
        addresses = [tensor.data_ptr() for tensor in tensors]
        bits = 0
        for address in addresses:
            bits |= address
        if bits % 16:
            launch(self.kernel, self.programs, tensors, floats, self.settings)
        elif found is None:
            self._compiled = self.kernel[(self.programs, 1)](*tensors, *floats, *self.settings, num_warps=4)
        else:
            start = (self.programs, 1, 1, current_stream(device), found.function, found.packed_metadata)
            found.run(*start, None, None, None, *addresses, *floats, *self.settings)
        return None


@functools.cache
def several_devices() -> bool:
    """Whether the current device may differ from that of a tensor."""
    return torch.cuda.device_count() > 1


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device current, because Triton launches on the current device."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def current_stream(device: int) -> int:
    """The address of torch's current stream."""
    return torch._C._cuda_getCurrentRawStream(device)
