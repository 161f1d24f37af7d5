"""From a section to the JSON schema that editors read."""

from __future__ import annotations

import json
from typing import Any

from sparsebit.config.quantization.sections import Section


def schema_of(keys: type[Section], *, title: str, description: str) -> dict[str, Any]:
    """What a config file may hold, as far as a schema can say it: keys and values, but not what goes together."""
    schema = keys.model_json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for key in section["properties"].values():
            key.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": title,
        "description": description,
    }


def schema_file(schema: dict[str, Any]) -> str:
    """The file, as it is written."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
