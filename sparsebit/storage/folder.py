"""Artifacts as folders of JSON and tensor files: written completely or not at all, checked before they are used.

``sparsebit.json`` names every tensor file with its size and digest, and each tensor file is named after its digest. So
a new artifact is written beside the old one in the same folder, and replacing the JSON file makes it the current one:
if the process is killed, the folder holds the old artifact or the new one. Files that belong to neither are removed by
the next save or load; the user's files stay. Nothing in the folder can run code when it is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsebit.errors import ArtifactError, with_article
from sparsebit.storage.drafts import DRAFT, Draft, sweep, sync
from sparsebit.storage.fields import Fields
from sparsebit.storage.json_text import canonical, read_json
from sparsebit.storage.place import cannot_write, require_name, require_room, require_writable
from sparsebit.storage.tensor_file import Deferred, read_tensors, write_tensors
from sparsebit.storage.text_file import read_bytes, write_text

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "sparsebit.json"
MOST_MANIFEST = 2**28
SHARD = 2**29
_NAME = re.compile(r"[a-z_]+(-\d{5})?-[0-9a-f]{16}\.safetensors")

Groups = Mapping[str, "Mapping[str, Tensor | Deferred]"]


def write_folder(
    folder: str | os.PathLike[str], kind: str, version: int, content: Mapping[str, Any], tensors: Groups
) -> None:
    """Write an artifact: ``content`` as JSON, and each group of ``tensors`` as files of at most 512 MB.

    An existing artifact is replaced, and other files in its folder stay; a folder without an artifact that is not empty
    is refused.
    """
    place = require_place(folder, sum(t.nbytes for group in tensors.values() for t in group.values()))
    made = not place.exists()
    drafts: list[Draft] = []
    try:
        place.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        groups = {name: list(_write_group(place, name, group, drafts)) for name, group in tensors.items()}
        manifest = {"kind": kind, "version": version, "groups": groups, "content": dict(content)}
        text = json.dumps(manifest | {"digest": _digest(manifest)}, indent=1, ensure_ascii=False)
        _sync(place)
        write_text(place / MANIFEST, text + "\n")
        _sync(place)
    except OSError as error:
        raise cannot_write(Path(folder), error.strerror or str(error)) from None
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{kind} cannot be saved: {error}", where=str(folder)) from None
    finally:
        for draft in drafts:
            draft.close()
        with contextlib.suppress(OSError):
            _sweep(place)  # of the old artifact, or of this one where it was not completed
            if made and not any(place.iterdir()):
                place.rmdir()


def _write_group(
    place: Path, name: str, group: Mapping[str, Tensor | Deferred], drafts: list[Draft]
) -> Iterator[dict[str, Any]]:
    shards = list(_shards(group))
    for index, shard in enumerate(shards):
        draft = Draft(place, drafts)
        digest = write_tensors(draft.file, shard)
        number = f"-{index + 1:05d}" if len(shards) > 1 else ""
        path = draft.finish(f"{name}{number}-{digest[:16]}.safetensors")
        yield {"file": path.name, "bytes": path.stat().st_size, "digest": digest}


def _shards(group: Mapping[str, Tensor | Deferred]) -> Iterator[dict[str, Tensor | Deferred]]:
    """Tensors in their order, in parts of at most 512 MB; a larger tensor is a separate part."""
    shard: dict[str, Tensor | Deferred] = {}
    size = 0
    for name, tensor in group.items():
        if shard and size + tensor.nbytes > SHARD:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


def require_place(folder: str | os.PathLike[str], needs: int = 0) -> Path:
    """The place for an artifact, after checking that it can be written; called before hours of work.

    ``needs`` is the number of bytes it will take, if known.
    """
    place = require_name(folder)
    if place.exists() and not place.is_dir():
        raise ArtifactError(f"{place} is a file", expected="a folder to write to", hint="choose a new folder")
    if place.is_dir() and not (place / MANIFEST).is_file():
        _sweep(place)
        # Another process may be saving here for the first time: its files have our names.
        if any(not (_NAME.fullmatch(path.name) or DRAFT.fullmatch(path.name)) for path in place.iterdir()):
            raise ArtifactError(
                f"{place} exists and contains other files",
                hint="choose an empty or a new folder; nothing was written",
            )
    require_room(place, require_writable(place), needs)
    return place


def unshared(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Each tensor once, and the other names of shared tensors. Nothing is copied.

    Example:
        >>> import torch
        >>> tied = torch.ones(2)
        >>> unshared({"embed": tied, "head": tied})
        ({'embed': tensor([1., 1.])}, {'head': 'embed'})
    """
    import torch

    kept: dict[str, Any] = {}
    first: dict[tuple[Any, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, value in state.items():
        if isinstance(value, Deferred):
            key: tuple[Any, ...] = (id(value),)
        elif isinstance(value, torch.Tensor):
            where = (value.untyped_storage().data_ptr(), value.storage_offset(), value.dtype)
            key = (*where, value.shape, value.stride()) if value.numel() else (name,)
        else:
            raise ArtifactError(
                f"{name!r} in the model's state dict is not a tensor and cannot be saved",
                got=type(value).__name__,
            )
        if key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            kept[name] = value if isinstance(value, Deferred) else value.detach()
    return kept, aliases


def with_aliases(state: Mapping[str, Tensor], aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors under all their names again: the other half of ``unshared``."""
    if lost := next((first for first in aliases.values() if first not in state), None):
        raise ArtifactError(f"the saved model names a tensor it does not have: {lost!r}")
    return {**state, **{name: state[first] for name, first in aliases.items()}}


def read_folder(
    folder: str | os.PathLike[str], kind: str, version: int
) -> tuple[Fields, dict[str, dict[str, Tensor]]]:
    """Content and tensors of an artifact, after all checks; the content's fields are checked when they are read."""
    if not isinstance(folder, str | os.PathLike):
        raise ArtifactError("a saved model is loaded from a folder", got=with_article(type(folder).__name__))
    place = Path(folder)
    try:
        manifest = _read_manifest(place, kind, version)
        with contextlib.suppress(OSError):
            _sweep(place)
        tensors: dict[str, dict[str, Tensor]] = {}
        for group, files in manifest.section("groups").items():
            tensors[group] = {}
            for entry in Fields.each(files, str(place / MANIFEST)):
                tensors[group] |= _read_file(place, entry)
    except MemoryError:
        raise ArtifactError(f"{place} does not fit into memory") from None
    return manifest.section("content"), tensors


def _read_manifest(place: Path, kind: str, version: int) -> Fields:
    path = place / MANIFEST
    try:
        data = read_bytes(path, MOST_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(
            f"{place} is not a saved model",
            expected=f"a folder with {MANIFEST} in it",
            got="a file" if place.is_file() else None,
        ) from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}") from None
    manifest = Fields(read_json(data, path), str(path))
    found = manifest.text("kind"), manifest.integer("version")
    if found[0] != kind:
        raise ArtifactError(f"{place} holds another kind of artifact", expected=kind, got=found[0][:80])
    if found[1] != version:
        newer = found[1] > version
        raise ArtifactError(
            f"{place} was written by {'a newer' if newer else 'an older'} sparsebit",
            expected=f"format {version}",
            got=f"format {found[1]}"[:80],
            hint="upgrade sparsebit to load it" if newer else "save the model again",
        )
    claimed = manifest.text("digest")
    if claimed != _digest({key: value for key, value in manifest.data.items() if key != "digest"}):
        raise ArtifactError(f"{path} was changed after it was saved", hint="save the model again")
    return manifest


def _read_file(place: Path, entry: Fields) -> dict[str, Tensor]:
    name, size, digest = entry.text("file"), entry.integer("bytes"), entry.text("digest")
    if not _NAME.fullmatch(name):
        raise entry.wrong("file", "the name of a tensor file in this folder")
    try:
        return read_tensors(place / name, size, digest)
    except FileNotFoundError:
        raise ArtifactError(f"{place / name} is missing", hint="copy the complete folder again") from None
    except OSError as error:
        raise ArtifactError(f"{place / name} cannot be read: {error.strerror or error}") from None


def _sweep(place: Path) -> None:
    """Remove the remains of killed saves: drafts, and tensor files that the manifest does not name."""
    with contextlib.suppress(ArtifactError):  # a manifest that cannot be read: its files may be the only copy
        sweep(place, _NAME, lambda: _named(place))


def _named(place: Path) -> set[str]:
    """Names of the tensor files of the current artifact."""
    if not (place / MANIFEST).exists():
        return set()
    try:
        manifest = Fields(read_json(read_bytes(place / MANIFEST, MOST_MANIFEST), place), str(place))
    except OSError as error:
        raise ArtifactError(f"{place / MANIFEST} cannot be read: {error}") from None
    lists = [Fields.each(files, str(place)) for _, files in manifest.section("groups").items()]
    return {entry.text("file") for files in lists for entry in files}


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(manifest)).hexdigest()


def _sync(place: Path) -> None:
    """Flush the names of new files to disk before the file that refers to them."""
    with contextlib.suppress(OSError):
        sync(place)
