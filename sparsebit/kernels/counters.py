"""Device counters shared by the programs of a kernel."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from sparsebit.kernels.launch import current_stream


class _Counters:
    """Counters on one device, which every kernel leaves at zero.

    Each stream has its own, because kernels on two streams may run at the same time. Each recorded call has its own
    too, because it may be replayed on any stream.
    """

    RESERVED = 2**21  # enough for some 4,000 recorded calls

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._of_stream: dict[int, Tensor] = {}
        # Too small ones too: a kernel on another stream may still be counting in them.
        self._made: list[Tensor] = []
        self._reserved = self._zeros(self.RESERVED)
        self._used = 0

    def _zeros(self, count: int) -> Tensor:
        """Zeros that are kept, made by a thread of their own.

        This thread may be using the memory pool of a CUDA graph (``torch.compile`` with ``mode="reduce-overhead"``), in
        which nothing may be kept.
        """

        def make() -> Tensor:
            zeros = torch.zeros(count, dtype=torch.int32, device=self._device)
            if self._device.type == "cuda":
                torch.cuda.default_stream(self._device).synchronize()
            return zeros

        with ThreadPoolExecutor(1) as thread:
            made = thread.submit(make).result()
        self._made.append(made)
        return made

    def take(self, count: int) -> Tensor:
        """At least ``count`` counters for a call on the current stream."""
        count = math.ceil(count / 4) * 4  # so that the next ones begin at a multiple of 16 bytes as well
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if self._used + count > self.RESERVED:  # the zeros are recorded, and made by each replay
                return torch.zeros(count, dtype=torch.int32, device=self._device)
            self._used += count
            return self._reserved[self._used - count : self._used]
        stream = current_stream(self._device.index) if self._device.type == "cuda" else 0
        found = self._of_stream.get(stream)
        if found is None or found.numel() < count:
            found = self._of_stream[stream] = self._zeros(max(count, 4096))
        return found


_counters: dict[torch.device, _Counters] = {}


def take_counters(device: torch.device, count: int) -> Tensor:
    """Counters for one call on the current stream; the kernel must leave them at zero."""
    found = _counters.get(device)
    if found is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return torch.zeros(count, dtype=torch.int32, device=device)
        found = _counters[device] = _Counters(device)
    return found.take(count)
