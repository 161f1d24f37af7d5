"""How the site reads docstrings: "Example:" starts a section of code, as "Examples:" does elsewhere."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the section before it is parsed; otherwise its code would be read as text, brackets as links."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for everything that is documented."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
