"""The JSON schema of a section, for editors: keys and values, but not their valid combinations."""

from __future__ import annotations

import json
from typing import Any

from sparsebit.config.engine.config import Config
from sparsebit.config.engine.section import Section, keys_of


def schema_text(kind: type[Config]) -> str:
    """The schema file of a kind of config, as it is written."""
    definitions: dict[str, Any] = {}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.TITLE,
        "description": f"See docs/how-to/{kind.PAGE}.md.",
        **_object(kind, definitions),
        "$defs": definitions,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _object(kind: type[Section], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one section; its inner sections are added to ``definitions``."""
    properties, required = dict[str, Any](), list[str]()
    for name, key in keys_of(kind).items():
        inside = key.section
        if inside is not None:
            if inside.__name__ not in definitions:
                # Made empty first, so that definitions come in reading order.
                definitions[inside.__name__] = {}
                definitions[inside.__name__] |= {"description": inside.__doc__} | _object(inside, definitions)
            properties[name] = {"$ref": f"#/$defs/{inside.__name__}", "description": key.doc}
            must = "required" in definitions[inside.__name__] or "anyOf" in definitions[inside.__name__]
        else:
            assert key.read is not None
            value = getattr(kind, name)
            default = None if value is None or key.required else key.read.write(value)
            properties[name] = {**key.read.schema, "description": key.doc}
            properties[name] |= {"default": default} if default is not None else {}
            must = key.required and name not in kind.needs_one_of
        required += [name] if must else []
    found: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if kind.needs_one_of:
        found["anyOf"] = [{"required": [name]} for name in kind.needs_one_of]
    return found | ({"required": required} if required else {})
