"""Archives that would fill the memory."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sparsebit.storage import ArtifactError, archive
from sparsebit.storage.archive import require_expansion


def test_an_archive_of_zeros_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x", b"\0" * 2**22)
    require_expansion(path, 100)  # small enough for any memory
    monkeypatch.setattr(archive, "_SMALL", 2**20)
    with pytest.raises(ArtifactError, match=r"would grow from .* kB to 4.19 MB(.|\n)*at most 100 times"):
        require_expansion(path, 100)
    require_expansion(path, 2000)
