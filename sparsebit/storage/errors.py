"""The error of files that cannot be written, or cannot be trusted."""

from __future__ import annotations

from sparsebit.errors import SparsebitError


class ArtifactError(SparsebitError):
    """A file or folder that cannot be written, or cannot be trusted."""
