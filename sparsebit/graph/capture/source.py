"""Places in the model's own source."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import types
from typing import NamedTuple

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep
_PACKAGES = os.path.join(_STANDARD, "site-packages") + os.sep
_MODEL_CALL = "Runs._call"  # the frame in which a recording calls the model
_foreign: dict[str, bool] = {}


class Source(NamedTuple):
    """A line of the user's code."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        code = linecache.getline(self.filename, self.line).strip()
        return f"{self.filename}:{self.line} in {self.function}" + (f": {code}" if code else "")


def is_foreign(filename: str) -> bool:
    """Whether a file is torch's, the standard library's or ours."""
    known = _foreign.get(filename)
    if known is None:
        path = os.path.abspath(filename)
        library = path.startswith(_STANDARD) and not path.startswith(_PACKAGES)
        known = path.startswith((_TORCH, _OURS)) or library or filename.startswith("<frozen")
        _foreign[filename] = known
    return known


def find_source(frame: types.FrameType | None = None) -> Source | None:
    """The innermost frame that is neither torch's, the standard library's nor ours."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_qualname == _MODEL_CALL and code.co_filename.startswith(_OURS):
            return None  # outer frames are not the model
        if not is_foreign(code.co_filename):
            return Source(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None


def running_line() -> str | None:
    """The model's line that is running, for a message; None outside a model."""
    found = find_source()
    return None if found is None else str(found)


def source_of_error(error: BaseException) -> Source | None:
    """The innermost line of the model's own source in an error's traceback."""
    found, trace = None, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_foreign(code.co_filename):
            found = Source(code.co_filename, trace.tb_lineno, code.co_qualname)
        trace = trace.tb_next
    return found
