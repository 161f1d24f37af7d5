"""Saved folders in tests: where their files are, and edits that leave every digest right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparsebit.storage import MANIFEST
from sparsebit.storage.json_text import canonical


def file_of(folder: Path, group: str) -> Path:
    """The one file of a group of tensors."""
    (found,) = folder.glob(f"{group}-*.safetensors")
    return found


def tensor_files(folder: Path) -> Iterator[Path]:
    """Every file of tensors."""
    return folder.glob("*.safetensors")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the JSON says."""
    return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON and make its digest right again, as any tool can."""
    manifest = read_manifest(folder)
    edit(manifest)
    manifest.pop("digest", None)
    digest = hashlib.sha256(canonical(manifest)).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest | {"digest": digest}), encoding="utf-8")


def edit_file(folder: Path, group: str, data: bytes) -> None:
    """Change the one file of a group, and make all digests right again."""
    old, digest = file_of(folder, group), hashlib.sha256(data).hexdigest()
    old.write_bytes(data)

    def renamed(manifest: dict[str, Any]) -> None:
        manifest["groups"][group] = [{"file": old.name, "bytes": len(data), "digest": digest}]

    edit_manifest(folder, renamed)
