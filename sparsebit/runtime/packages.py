"""The optional packages of this part, imported when needed."""

from __future__ import annotations

import importlib
from typing import Any

from sparsebit.errors import missing_package

_EXTRA = {"openvino": "openvino", "gguf": "llm-engines"}


def require(name: str) -> Any:
    """Import an optional package, or say how to install it.

    Example:
        >>> require("onnx").__name__
        'onnx'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        raise missing_package(root, "exporting", extra=_EXTRA.get(root, "onnx"), error=error) from error
