"""The JSON schema of a pruning config, for editors.

``python -m sparsebit.config.pruning.schema [FILE]`` writes it, by default to ``docs/sconfig.schema.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sparsebit.config.engine.json_schema import schema_file, schema_of
from sparsebit.config.pruning.sections import SConfigKeys

PLACE = Path("docs", "sconfig.schema.json")


def make_sconfig_schema() -> dict[str, Any]:
    """What a config file may hold, as far as a schema can say it: keys and values, but not what goes together."""
    return schema_of(
        SConfigKeys,
        title="Sparsebit pruning config",
        description="Keys of an sconfig.yaml. See docs/how-to/prune.md.",
    )


def sconfig_schema_text() -> str:
    """The file, as it is written."""
    return schema_file(make_sconfig_schema())


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else PLACE
    place.write_text(sconfig_schema_text(), encoding="utf-8")
