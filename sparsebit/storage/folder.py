"""Artifacts as folders of JSON and safetensors: written whole or not at all, checked before they are believed.

A folder holds ``sparsebit.json`` and files of tensors. The JSON names its format, the version of that, and the digest
of every file beside it and of itself, so that a truncated, edited or newer folder is refused with the reason. Nothing
in it can run code when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsebit.storage.errors import ArtifactError

MANIFEST = "sparsebit.json"


def write_folder(
    folder: str | os.PathLike[str],
    kind: str,
    version: int,
    content: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write an artifact: ``content`` as JSON, and each entry of ``tensors`` as ``<name>.safetensors``.

    It is made under another name beside its place and moved there when complete. An artifact that was there is
    replaced; any other folder is left alone and refused.
    """
    from safetensors.torch import save_file

    place = require_place(folder).absolute()
    # Named before it is made, and made inside the block that removes it: an interrupt may come between any two lines.
    made = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    old = made.with_name(f"{made.name}.old")
    try:
        made.mkdir(parents=True)
        digests = {}
        for name, group in tensors.items():
            path = made / f"{name}.safetensors"
            save_file(dict(group), path)
            digests[path.name] = _digest(path.read_bytes())
        manifest = {"kind": kind, "version": version, "files": digests, "content": dict(content)}
        text = json.dumps(manifest | {"digest": _digest(_canonical(manifest))}, indent=1)
        (made / MANIFEST).write_text(text, encoding="utf-8")
        if place.exists():
            os.rename(place, old)
        os.rename(made, place)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise _cannot_write(Path(folder), error.strerror or str(error)) from None
    finally:
        if old.exists() and not place.exists():
            os.rename(old, place)
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def require_place(folder: str | os.PathLike[str]) -> Path:
    """The place for an artifact, after making sure that it can go there: to be asked before hours of work."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise ArtifactError(f"{place} is a file", expected="a folder to write to", hint="choose a new folder")
    if place.is_dir() and not (place / MANIFEST).is_file() and any(place.iterdir()):
        raise ArtifactError(
            f"{place} exists and holds something else",
            hint="choose an empty or a new folder, nothing was written",
        )
    above = next(parent for parent in place.absolute().parents if parent.exists())
    if not above.is_dir():
        raise _cannot_write(place, f"{above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _cannot_write(place, f"no permission to write in {above}")
    return place


def _cannot_write(place: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        f"cannot write {place}: {reason}",
        hint="choose a folder you may write to, with room on its disk; nothing was changed",
    )


def unshared(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors that share no memory, as the format wants them, and which other names mean one of them.

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
        if not isinstance(value, torch.Tensor):
            raise ArtifactError(
                f"{name!r} is in the model's state dict and no tensor, so it cannot be saved here",
                got=type(value).__name__,
            )
        where = (value.untyped_storage().data_ptr(), value.storage_offset(), value.dtype)
        key = (*where, value.shape, value.stride()) if value.numel() else (name,)
        if key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            kept[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return kept, aliases


def read_folder(
    folder: str | os.PathLike[str], kind: str, version: int
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Content and tensors of an artifact, after every check."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    place = Path(folder)
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(
            f"{place} is no saved model", expected=f"a folder with {MANIFEST} in it"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ArtifactError(
            f"{place / MANIFEST} cannot be read: {error}", hint="save the model again"
        ) from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("version"), int):
        raise ArtifactError(f"{place / MANIFEST} is not what sparsebit writes", hint="save the model again")
    if manifest.get("kind") != kind:
        raise ArtifactError(
            f"{place} holds another kind of artifact", expected=kind, got=str(manifest.get("kind"))
        )
    if manifest["version"] > version:
        raise ArtifactError(
            f"{place} was written by a newer sparsebit",
            expected=f"format {version} or older",
            got=f"format {manifest['version']}",
            hint="upgrade sparsebit to load it",
        )
    claimed = manifest.pop("digest", None)
    if claimed != _digest(_canonical(manifest)):
        raise ArtifactError(f"{place / MANIFEST} was changed after it was saved", hint="save the model again")
    tensors = {}
    for name, digest in manifest["files"].items():
        try:
            data = (place / Path(name).name).read_bytes()
            if _digest(data) != digest:
                raise ArtifactError(
                    f"{place / name} is not the file that was saved: it is truncated or was changed",
                    hint="copy the folder again, or save the model again",
                )
            tensors[name.removesuffix(".safetensors")] = load(data)
        except FileNotFoundError:
            raise ArtifactError(f"{place / name} is missing", hint="copy the whole folder") from None
        except (OSError, SafetensorError) as error:
            raise ArtifactError(f"{place / name} cannot be read: {error}") from None
    content: dict[str, Any] = manifest["content"]
    return content, tensors


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
