"""How a notebook shows this library's objects."""

from __future__ import annotations

from typing import Any


def in_notebook(value: Any) -> str:
    """One of this library's objects as HTML; as a method of its class: ``_repr_html_ = in_notebook``.

    The drawing is done far above, in ``integrations``, and is loaded when a notebook asks for it.
    """
    from sparsebit.integrations.notebook import to_html

    return to_html(value)
