"""Files that survive an interrupt and are checked before they are used: text files, and folders of tensors."""

from sparsebit.errors import ArtifactError
from sparsebit.storage.fields import Fields
from sparsebit.storage.folder import (
    MANIFEST,
    read_folder,
    require_place,
    unshared,
    with_aliases,
    write_folder,
)
from sparsebit.storage.place import require_file
from sparsebit.storage.text_file import read_text, write_text
from sparsebit.storage.work_folder import remove_steps, working_in

__all__ = [
    "MANIFEST",
    "ArtifactError",
    "Fields",
    "read_folder",
    "read_text",
    "remove_steps",
    "require_file",
    "require_place",
    "unshared",
    "with_aliases",
    "working_in",
    "write_folder",
    "write_text",
]
