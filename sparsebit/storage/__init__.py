"""Files that survive an interrupt and are checked before they are believed: text files, and folders of tensors."""

from sparsebit.storage.errors import ArtifactError
from sparsebit.storage.folder import (
    MANIFEST,
    read_folder,
    require_place,
    unshared,
    write_folder,
)
from sparsebit.storage.text_file import require_file, write_text

__all__ = [
    "MANIFEST",
    "ArtifactError",
    "read_folder",
    "require_file",
    "require_place",
    "unshared",
    "write_folder",
    "write_text",
]
