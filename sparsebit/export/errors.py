"""What can go wrong on the way to a file."""

from __future__ import annotations

from sparsebit.errors import SparsebitError


class ExportError(SparsebitError):
    """A model could not be written, or the file does not do what the model does."""
