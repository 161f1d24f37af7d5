"""From a checked config back to plain data and YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparsebit.config.engine.nested import plain
from sparsebit.config.engine.specific import write_rules
from sparsebit.config.quantization.sections import Section
from sparsebit.config.quantization.tensor_spec import Options

Writers = Mapping[str, Callable[[Any], Any]]  # by key, for values that are not plain


def write_section(section: Section, writers: Writers | None = None) -> dict[str, Any]:
    """Plain dicts, lists and scalars; what is not set is left out."""
    known: Writers = {"SPECIFIC": write_rules, **(writers or {})}
    written: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            written[name] = write_section(value, writers)
        elif isinstance(value, Options):
            if value:
                written[name] = dict(value)
        elif name in known:
            written[name] = plain(known[name](value))
        elif value is not None:
            written[name] = plain(value)
    return written
