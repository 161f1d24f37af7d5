"""The JSON schema of a config, for editors: completion, hints, and a red line under a misspelt key.

``python -m sparsebit.config.quantization.schema [FILE]`` writes it, by default to ``docs/qconfig.schema.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sparsebit.config.engine.json_schema import schema_file, schema_of
from sparsebit.config.quantization.sections import QConfigKeys

PLACE = Path("docs", "qconfig.schema.json")


def make_schema() -> dict[str, Any]:
    """What a config file may hold, as far as a schema can say it: keys and values, but not what goes together."""
    schema = schema_of(
        QConfigKeys,
        title="Sparsebit quantization config",
        description="Keys of a qconfig.yaml. See docs/how-to/configure.md.",
    )
    for name in ("QuantizerSection", "ActivationQuantizerSection"):  # a type of fp8 needs no BIT
        quantizer = schema["$defs"][name]
        quantizer.pop("required")
        quantizer["anyOf"] = [{"required": ["BIT"]}, {"required": ["DTYPE"]}]
    return schema


def schema_text() -> str:
    """The file, as it is written."""
    return schema_file(make_schema())


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else PLACE
    place.write_text(schema_text(), encoding="utf-8")
