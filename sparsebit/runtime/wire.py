"""Messages between two processes over a pipe: a header in JSON, then the bytes of arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from sparsebit.runtime.packages import require

_LENGTH = struct.Struct("<Q")


def send(stream: IO[bytes], header: Mapping[str, Any], arrays: Mapping[str, Any] | None = None) -> None:
    """Write one message; nothing is written where a value is not an array of numbers."""
    arrays = arrays or {}
    if wrong := [name for name, array in arrays.items() if not _is_numbers(array)]:
        raise TypeError(f"not an array of numbers: {', '.join(wrong)}")
    told = [(name, str(array.dtype), array.shape) for name, array in arrays.items()]
    text = json.dumps({**header, "arrays": told}).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    for array in arrays.values():
        stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read one message: its header, and its arrays by name.

    Raises:
        EOFError: the other process has ended.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    header = json.loads(_read(stream, length))
    arrays = {}
    for name, kind, shape in header.pop("arrays"):
        dtype = dtype_named(kind)
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[name] = np.frombuffer(_read(stream, count), np.uint8).view(dtype).reshape(shape)
    return header, arrays


def _read(stream: IO[bytes], count: int) -> bytearray:
    """So many bytes; writable, since torch takes arrays as they are."""
    buffer = bytearray(count)
    view, done = memoryview(buffer), 0
    while done < count:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError("the other process has ended")
        done += got
    return buffer


def dtype_named(name: str) -> np.dtype[Any]:
    """A type of numbers from its name.

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
