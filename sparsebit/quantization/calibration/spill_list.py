"""A list that spills to disk: values that are read again later, in memory up to a limit."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from safetensors.torch import load_file, save_file
from torch import Tensor

MOST_IN_MEMORY = 16 * 2**20


class SpillList:
    """A list of nested values whose tensors may be in a temporary folder.

    Every read returns equal values on their original device; nothing is unpickled. The folder is deleted with the
    object. With ``copies`` those in memory are copied too, so that the caller may overwrite them.

    Example:
        >>> stored = SpillList(limit=0)
        >>> stored.append({"x": torch.ones(2), "n": 3})
        >>> stored[0]
        {'x': tensor([1., 1.]), 'n': 3}
    """

    def __init__(self, limit: int | None = None, *, copies: bool = False) -> None:
        self._limit = MOST_IN_MEMORY if limit is None else limit
        self._bytes, self._copies = 0, copies
        self._items: list[tuple[list[Any], Any]] = []
        self._folder: Path | None = None
        self._serial = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> SpillList:
        """A copy with the same values, in a separate folder."""
        twin = SpillList(self._limit, copies=True)
        for value in self:
            twin.append(value)
        return twin

    def append(self, value: Any) -> None:
        """Append a value."""
        self._items.append(self._put(value))

    def pop(self) -> None:
        """Remove the last value."""
        self._forget(self._items.pop()[0])

    def __setitem__(self, index: int, value: Any) -> None:
        self._forget(self._items[index][0])
        self._items[index] = self._put(value)

    def __getitem__(self, index: int) -> Any:
        leaves, structure = self._items[index]
        files = {
            path: load_file(path) for path in {leaf.path for leaf in leaves if isinstance(leaf, _OnDisk)}
        }
        found = [
            files[leaf.path][leaf.key].to(leaf.device) if isinstance(leaf, _OnDisk) else leaf
            for leaf in leaves
        ]
        return pytree.tree_unflatten(found, structure)

    def _put(self, value: Any) -> tuple[list[Any], Any]:
        leaves, structure = pytree.tree_flatten(value)
        tensors = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        size = sum(tensor.nbytes for tensor in tensors.values())
        if self._bytes + size <= self._limit or self._bytes + size <= self._limit_on_gpu(tensors.values()):
            self._bytes += size
            if self._copies:
                leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return leaves, structure
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="sparsebit-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / f"{self._serial}.safetensors"
        self._serial += 1
        # Copied, because tensors may share memory, which the format does not allow.
        save_file(
            {
                key: t.detach().cpu().clone(memory_format=torch.contiguous_format)
                for key, t in tensors.items()
            },
            path,
        )
        kept = [
            _OnDisk(path, str(i), leaf.device) if str(i) in tensors else leaf for i, leaf in enumerate(leaves)
        ]
        return kept, structure

    def _limit_on_gpu(self, tensors: Iterable[Tensor]) -> int:
        """On a GPU, an eighth of the free memory, if that is more: reading back from disk would make the GPU wait."""
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        return 0 if device is None or not self._limit else torch.cuda.mem_get_info(device)[0] // 8

    def _forget(self, leaves: list[Any]) -> None:
        self._bytes -= sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
        for path in {leaf.path for leaf in leaves if isinstance(leaf, _OnDisk)}:
            path.unlink(missing_ok=True)


class _OnDisk(NamedTuple):
    """The place of a tensor on disk."""

    path: Path
    key: str
    device: torch.device
