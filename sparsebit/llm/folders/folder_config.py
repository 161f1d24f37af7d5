"""What transformers may follow in a folder: it builds what the configs describe, and they bring nothing else with them.

No code of the folder is run, nothing is downloaded, and no file outside the folder is read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsebit.errors import ArtifactError, missing_package
from sparsebit.graph.exclusive import replaced
from sparsebit.storage import MANIFEST
from sparsebit.storage.text_file import read_bytes

CONFIG, ADAPTERS, TOKENIZER = "config.json", "adapter_config.json", "tokenizer_config.json"
MOST_BYTES = 2**24


def import_transformers() -> Any:
    """The package that knows the classes of language models, or an error that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise missing_package("transformers", "a language model", extra="llm", error=error) from error
    return transformers


def read_config(folder: str | os.PathLike[str]) -> Any:
    """The transformers config in a folder; no code is run, and nothing outside the folder is read."""
    transformers = import_transformers()
    place = Path(folder)
    if (place / ADAPTERS).exists():
        raise ArtifactError(
            "this folder holds adapters; transformers would load the base model that they name",
            where=str(place / ADAPTERS),
            hint="pass the folder of the base model; load_lora(model, folder) adds the adapters",
        )
    if (place / MANIFEST).exists() and not (place / CONFIG).exists():
        raise ArtifactError(
            f"the model in {os.fspath(folder)!r} is quantized already",
            expected="a folder that save_pretrained wrote",
            hint="pass the folder of the float model",
        )
    require_no_code(_read(place / CONFIG), str(place / CONFIG))
    try:
        with offline():
            return transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # transformers raises what its config classes raise
        raise ArtifactError(
            "transformers cannot read the config", where=str(place / CONFIG), got=str(error)[:200]
        ) from error


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Inside, transformers downloads nothing: configs may name other models, such as a backbone."""
    from huggingface_hub import constants

    with replaced((constants, "HF_HUB_OFFLINE", True)):
        yield


def require_plain_files(folder: Path) -> None:
    """Raise if a folder holds a pipe or a device, whose reading may never end."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ArtifactError(f"{path} is not a file", hint="remove it")


def require_own_vocabulary(folder: Path) -> None:
    """Raise if the settings of a tokenizer name the file of a vocabulary, which may be any file of this machine."""
    place = folder / TOKENIZER
    settings = _read(place) if place.exists() else {}
    for key in ("vocab", "merges"):
        if isinstance(settings, dict) and isinstance(settings.get(key), str):
            raise ArtifactError(
                "the settings of the tokenizer name a file that transformers would read",
                where=str(place),
                got=f"{key}: {settings[key][:80]!r}",
                hint=f"remove {key}",
            )


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
