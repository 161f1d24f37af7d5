"""The config.json of a folder, checked so that transformers builds a model from it without running code it names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsebit.errors import ArtifactError
from sparsebit.storage.text_file import read_bytes

CONFIG, ADAPTERS = "config.json", "adapter_config.json"
MOST_BYTES = 2**24


def read_config(folder: str | os.PathLike[str]) -> Any:
    """The transformers config in a folder; no code is run, and nothing outside the folder is read."""
    from transformers import AutoConfig

    place = Path(folder)
    if (place / ADAPTERS).exists():
        raise ArtifactError(
            "this folder holds adapters; transformers would load the base model that they name",
            where=str(place / ADAPTERS),
            hint="pass the folder of the base model; load_lora(model, folder) adds the adapters",
        )
    require_no_code(_read(place / CONFIG), str(place / CONFIG))
    try:
        return AutoConfig.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers passes on whatever its config classes raise
        raise ArtifactError(
            "transformers cannot read the config", where=str(place / CONFIG), got=str(error)[:200]
        ) from error


def require_no_code(config: Any, where: str) -> None:
    """Raise if a config names a kernel on a model hub, which transformers would download and run.

    Example:
        >>> require_no_code({"attn_implementation": "sdpa"}, "config.json")
    """
    for key, value in _settings(config):
        if key.endswith("_implementation") and "/" in value:
            raise ArtifactError(
                f"{key} names code that transformers would download and run",
                where=where,
                got=f"{value[:80]!r}",
                hint=f"remove {key} from the config",
            )


def _settings(config: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every string in nested settings, with its key or that of the dict around it."""
    if isinstance(config, dict):
        for key, value in config.items():
            yield from _settings(value, name if name.endswith("_implementation") else str(key))
    elif isinstance(config, list):
        for value in config:
            yield from _settings(value, name)
    elif isinstance(config, str):
        yield name, config


def _read(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path, MOST_BYTES))  # with Infinity allowed, which some configs contain
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)[:200]
        raise ArtifactError(
            f"{path} cannot be read: {reason}", expected="a folder that save_pretrained wrote"
        ) from None
