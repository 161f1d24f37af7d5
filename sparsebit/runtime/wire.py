"""Messages between two processes: a JSON header through a pipe, and the bytes of arrays in shared memory."""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from sparsebit.runtime.packages import require

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64  # bytes; the alignment for vector instructions
LARGEST_KEPT = 2**28  # bytes; a shared file that is larger is emptied after its message


def shared_file() -> IO[bytes]:
    """A file without a name, for a process started with its descriptor; in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("sparsebit"), "r+b")
    return tempfile.TemporaryFile()


def give_back(file: int) -> None:
    """Empty a shared file that is large; only while no message is in transit, because the other end would lose it."""
    if os.fstat(file).st_size > LARGEST_KEPT:
        os.ftruncate(file, 0)


class Sender:
    """The end that writes: headers into a stream, arrays from the start of a file that the other end maps.

    A message must be answered before the next is sent, because each overwrites the last.
    """

    def __init__(self, stream: IO[bytes], file: int) -> None:
        self.stream, self.file = stream, file

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
        """Write one message; nothing is sent if a value is not a numeric array, or if memory is exhausted."""
        arrays = arrays or {}
        if wrong := [name for name, array in arrays.items() if not _is_numbers(array)]:
            raise TypeError(f"not an array of numbers: {', '.join(wrong)}")
        told, end = [], 0
        for name, array in arrays.items():
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            told.append((name, str(array.dtype), array.shape, begin))
            end = begin + self._write(array, begin)
        text = json.dumps({**header, "arrays": told, "bytes": end}).encode()
        self.stream.write(_LENGTH.pack(len(text)) + text)
        self.stream.flush()

    def _write(self, array: Any, begin: int) -> int:
        """Write the bytes of an array with a system call: with a mapping, a full disk would end the process."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        done = 0
        while done < len(data):
            done += os.pwrite(self.file, data[done:], begin + done)
        return done


class Receiver:
    """The end that reads."""

    def __init__(self, stream: IO[bytes], file: int) -> None:
        self.stream, self.file = stream, file
        self._memory: mmap.mmap | None = None

    def receive(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read one message: its header, and its arrays by name, which are valid until the next one or ``give_back``.

        Raises:
            EOFError: the other process has ended.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        header = json.loads(self._read(length))
        size = header.pop("bytes")
        if size and (self._memory is None or len(self._memory) < size):
            self._memory = mmap.mmap(self.file, size, access=mmap.ACCESS_READ)
        arrays = {}
        for name, kind, shape, begin in header.pop("arrays"):
            dtype, count = dtype_named(kind), int(np.prod(shape, dtype=np.int64))
            if self._memory is None or not count:
                arrays[name] = np.empty(shape, dtype)
            else:
                arrays[name] = np.frombuffer(self._memory, dtype, count, begin).reshape(shape)
        return header, arrays

    def _read(self, count: int) -> bytes:
        data = self.stream.read(count)
        if len(data) < count:
            raise EOFError("the other process has ended")
        return data


def dtype_named(name: str) -> np.dtype[Any]:
    """A numeric dtype from its name.

    Example:
        >>> dtype_named("bfloat16").itemsize
        2
    """
    try:
        return np.dtype(name)
    except TypeError:  # numpy itself does not have it
        found: np.dtype[Any] = np.dtype(getattr(require("ml_dtypes"), name))
        return found


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "OSUMm"
