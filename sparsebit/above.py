"""How a verb of a lower layer reaches the part above that does the work.

``QuantModel.export_onnx`` is where a user looks for it, and exporting belongs above quantization. So the method names
the function, and it is found when it is called: the lower part neither imports the upper one nor needs its packages.
"""

from __future__ import annotations

import importlib
from typing import Any


def call_above(place: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of this library by its dotted place.

    Example:
        >>> call_above("sparsebit.config.preset_names")[0]
        'int8_onnxruntime'
    """
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)(*args, **kwargs)


def in_notebook(value: Any) -> str:
    """How a notebook shows one of this library's objects; as a method of its class: ``_repr_html_ = in_notebook``."""
    return str(call_above("sparsebit.integrations.notebook.to_html", value))
