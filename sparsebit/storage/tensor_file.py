"""Tensor files in the safetensors format, written and read as a stream: no second copy of the model in memory.

The format: eight bytes with the length of a JSON header, the header, then the bytes of the tensors in its order.
(https://github.com/huggingface/safetensors#format)
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from sparsebit.errors import ArtifactError, damaged
from sparsebit.storage.json_text import read_json
from sparsebit.storage.text_file import open_regular

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 2**24
MOST_HEADER = 2**26
OWN_PAGES = 2**22
_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64", "U8": "uint8", "I8": "int8"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "U64": "uint64", "U32": "uint32", "U16": "uint16"},
}


@dataclass(frozen=True, eq=False)
class Deferred:
    """A tensor that is created when it is written, so that a group does not have to be in memory at once."""

    dtype: Any
    shape: tuple[int, ...]
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes it will have."""
        return int(math.prod(self.shape) * self.dtype.itemsize)

    def detach(self) -> Tensor:
        """The tensor."""
        made = self.make()
        assert made.dtype == self.dtype and tuple(made.shape) == self.shape
        return made


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor | Deferred]) -> str:
    """Write tensors to an open file, a few megabytes at a time; returns the SHA-256 of what was written."""
    spelled = {name: spelling for spelling, name in _DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in spelled:
            raise ArtifactError(f"{name!r} cannot be saved", got=f"a tensor of {dtype}")
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": spelled[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    digest = hashlib.sha256()
    for piece in _pieces(text, tensors):
        digest.update(piece)
        file.write(piece)
    return digest.hexdigest()


def _pieces(header: bytes, tensors: Mapping[str, Tensor | Deferred]) -> Iterator[Any]:
    yield len(header).to_bytes(8, "little")
    yield header
    for tensor in tensors.values():
        flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
        step = max(1, CHUNK // max(1, flat.element_size()))
        for start in range(0, flat.numel(), step):  # from a GPU, too, one piece at a time
            yield _bytes_of(flat[start : start + step].cpu())


def _bytes_of(flat: Tensor) -> memoryview:
    import torch

    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def read_tensors(path: str | os.PathLike[str], size: int, digest: str) -> dict[str, Tensor]:
    """The tensors of a file that must have this size and digest.

    The header is checked against the size of the file before memory is allocated.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size != size:
            raise _changed(path)
        seen = hashlib.sha256()
        header, start = _read_header(file, size, path, seen)
        tensors = {}
        for name, dtype, shape in _layout(header, size - start, path):
            tensors[name] = _read_tensor(file, dtype, shape, seen, path)
        if seen.hexdigest() != digest:
            raise _changed(path)
    return tensors


def _read_header(file: BinaryIO, size: int, path: Any, seen: Any) -> tuple[dict[str, Any], int]:
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > min(size - 8, MOST_HEADER):
        raise damaged(path, "the length of its header is wrong")
    text = file.read(length)
    seen.update(first)
    seen.update(text)
    header = read_json(text, path)
    if not isinstance(header, dict):
        raise damaged(path, "its header is wrong")
    return header, 8 + length


def _layout(header: Mapping[str, Any], size: int, path: Any) -> list[tuple[str, Any, list[int]]]:
    """Name, type and shape of every tensor, after checking that together they make up all bytes of the file."""
    import torch

    found, end = [], 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        told = entry if isinstance(entry, dict) else {}
        dtype, offsets = told.get("dtype"), told.get("data_offsets")
        shape: list[int] = told.get("shape") or []
        if not (isinstance(dtype, str) and dtype in _DTYPES and _is_shape(told.get("shape"))):
            raise damaged(path, f"the type or shape of {name!r} is wrong")
        kind = getattr(torch, _DTYPES[dtype])
        bytes_ = math.prod(shape) * kind.itemsize
        if offsets != [end, end + bytes_] or end + bytes_ > size:
            raise damaged(path, f"the place of {name!r} is wrong")
        end += bytes_
        found.append((name, kind, shape))
    if end != size:
        raise damaged(path, "its length is wrong")
    return found


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= 64
        and all(type(length) is int and 0 <= length < 2**48 for length in shape)
    )


def _read_tensor(file: BinaryIO, dtype: Any, shape: list[int], seen: Any, path: Any) -> Tensor:
    import torch

    tensor = _empty(shape, dtype)
    view = _bytes_of(tensor.reshape(-1)) if tensor.numel() else memoryview(b"")
    for start in range(0, len(view), CHUNK):
        piece = view[start : start + CHUNK]
        if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
            raise _changed(path)
        seen.update(piece)
    if dtype is torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise damaged(path, "a flag is wrong")
    return tensor


def _empty(shape: list[int], dtype: Any) -> Tensor:
    """A tensor to read into. A large one has its own memory pages, which are returned to the system when it is freed.

    The allocator would keep them: a model whose weights are unpacked one by one would also keep the packed ones.
    """
    import torch

    size = math.prod(shape) * dtype.itemsize
    if size < OWN_PAGES:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).view(dtype).reshape(shape)


def _changed(path: Any) -> ArtifactError:
    return ArtifactError(
        f"{path} is not the file that was saved: it is truncated or was changed",
        hint="copy the folder again, or save the model again",
    )
