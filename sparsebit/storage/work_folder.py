"""Folders in which a long run saves its finished steps, so that it can resume after being stopped."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from sparsebit.errors import ArtifactError
from sparsebit.storage.drafts import DRAFT
from sparsebit.storage.folder import MANIFEST
from sparsebit.storage.locks import Lock
from sparsebit.storage.place import writing

_STEP = re.compile(r"[a-z_]+-\d{4,}")  # names of finished steps, such as block-0003


@contextlib.contextmanager
def working_in(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Create a folder and keep all other runs out of it; without a folder, do nothing.

    A second run would use the steps of the first as its own, or remove them.
    """
    if folder is None:
        yield
        return
    lock = Lock(Path(folder))
    made = not lock.path.exists()
    with writing(lock.path):
        lock.path.mkdir(parents=True, exist_ok=True)
    if not lock.take() and lock.busy:
        raise ArtifactError(
            f"another run is working in {lock.path}", hint="wait until it has ended, or choose another folder"
        )
    try:
        yield
    finally:
        if made:
            # It has failed before it kept anything, or there was nothing to keep.
            with contextlib.suppress(OSError):
                lock.path.rmdir()
        lock.release()


def remove_steps(folder: str | os.PathLike[str]) -> None:
    """Remove the finished steps of a run, and the folder if it is then empty; an error while a run uses it."""
    place = Path(folder)
    if not place.is_dir():
        return
    with working_in(place):
        for step in list(place.iterdir()):
            if _STEP.fullmatch(step.name) and _is_ours(step):
                shutil.rmtree(step, ignore_errors=True)
        with contextlib.suppress(OSError):  # the user's own files stay
            place.rmdir()


def _is_ours(step: Path) -> bool:
    """Whether a folder is a saved step, or an unfinished one."""
    if not step.is_dir():
        return False
    return (step / MANIFEST).is_file() or all(DRAFT.fullmatch(path.name) for path in step.iterdir())
