"""Tensor files: every type, bit for bit, readable by safetensors; and no size is believed before it is checked."""

from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparsebit.storage import ArtifactError, tensor_file, unshared
from sparsebit.storage.tensor_file import Deferred, read_tensors, write_tensors

TYPES = [getattr(torch, name) for name in tensor_file._DTYPES.values()]


def write(path: Path, tensors: dict[str, Tensor]) -> tuple[int, str]:
    with path.open("wb") as file:
        digest = write_tensors(file, tensors)
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == digest
    return len(data), digest


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_comes_back(tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "CHUNK", 16)  # so that pieces begin and end inside a tensor
    x = torch.randint(0, 2, (5, 7)).to(dtype)
    tensors = {"x": x, "t": x.t(), "none": x[:0], "one": x[0, 0], "ü": x[::2]}
    found = read_tensors(tmp_path / "f", *write(tmp_path / "f", tensors))
    assert list(found) == list(tensors)
    for name, tensor in found.items():
        assert tensor.dtype == dtype and tensor.shape == tensors[name].shape
        assert torch.equal(tensor.flatten().view(torch.uint8), tensors[name].flatten().view(torch.uint8))


def test_the_format_is_that_of_safetensors(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, 4), "b": torch.randn(3).bfloat16(), "flags": torch.tensor([True, False])}
    write(tmp_path / "ours.safetensors", tensors)
    theirs = load_file(tmp_path / "ours.safetensors")
    assert all(torch.equal(theirs[name], tensors[name]) for name in tensors)
    save_file(tensors, tmp_path / "theirs.safetensors", {"format": "pt"})
    data = (tmp_path / "theirs.safetensors").read_bytes()
    found = read_tensors(tmp_path / "theirs.safetensors", len(data), hashlib.sha256(data).hexdigest())
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x00" * 7, b"\xff" * 8, raw(b"{"), raw([1]), raw({"w": 3}, b"\0" * 8), raw(b"\xff\xff")),
        *(raw({"w": ENTRY | {"dtype": kind}}, b"\0" * 8) for kind in ("F31", None, [], "float32")),
        *(
            raw({"w": ENTRY | {"shape": shape}}, b"\0" * 8)
            for shape in (None, [-2], [2.0], [2**60], [3], [True])
        ),
        *(raw({"w": ENTRY | {"data_offsets": at}}, b"\0" * 8) for at in (None, [0], [8, 0], [0, 9], [1, 9])),
        raw({"w": ENTRY | {"shape": [2**47], "data_offsets": [0, 2**49]}}, b"\0" * 8),
        *(
            raw({"w": ENTRY}, b"\0" * 7),
            raw({"w": ENTRY}, b"\0" * 9),
            raw({"w": ENTRY, "v": ENTRY}, b"\0" * 8),
        ),
        raw({"w": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\x02"),
        raw(b'{"w": ' + b"[" * 50_000),
    ],
)
def test_damaged_files_are_our_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"damaged|cannot be read|truncated"):
        read_tensors(tmp_path / "f", len(data), hashlib.sha256(data).hexdigest())


def test_another_size_or_digest_is_refused(tmp_path: Path) -> None:
    size, digest = write(tmp_path / "f", {"w": torch.ones(3)})
    for wrong in ((size + 1, digest), (size, "0" * 64)):
        with pytest.raises(ArtifactError, match="truncated or was changed"):
            read_tensors(tmp_path / "f", *wrong)


def test_a_type_that_the_format_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"'w' cannot be saved(.|\n)*complex128"):
        write(tmp_path / "f", {"w": torch.zeros(2, dtype=torch.complex128)})


def test_a_tensor_may_be_made_when_it_is_written(tmp_path: Path) -> None:
    made: list[Tensor] = []

    def make() -> Tensor:
        made.append(torch.arange(3))
        return made[-1]

    later = Deferred(torch.int64, (3,), make)
    kept, aliases = unshared({"a": later, "b": later})
    assert kept == {"a": later} and aliases == {"b": "a"} and later.nbytes == 24 and not made
    found = read_tensors(tmp_path / "f", *write(tmp_path / "f", kept))
    assert torch.equal(found["a"], torch.arange(3)) and len(made) == 1


def test_large_tensors_are_read_into_pages_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of the allocator would stay with the process after the tensor is gone."""
    monkeypatch.setattr(tensor_file, "OWN_PAGES", 64)
    pages: list[int] = []
    make = mmap.mmap
    monkeypatch.setattr(tensor_file.mmap, "mmap", lambda where, size: pages.append(size) or make(where, size))
    written = {"small": torch.ones(3), "large": torch.arange(64.0).reshape(8, 8), "flags": torch.ones(99) > 0}
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        digest = write_tensors(file, written)
    found = read_tensors(path, path.stat().st_size, digest)
    assert pages == [256, 99] and all(torch.equal(found[name], one) for name, one in written.items())
    found["large"] += 1  # and can be written to
